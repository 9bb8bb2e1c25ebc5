"""Two causal language models that share one vocabulary: the target, whose law matters, and the draft, which is cheap.

`load_pair` checks all that can be checked without weights; the weights load when first asked for, hence a process that
runs only one of the two models pays for one. Models are hub ids, local folders or .gguf files.
"""

import hashlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import is_offline_mode, snapshot_download
from jinja2 import TemplateError
from safetensors import SafetensorError
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from diversed.errors import PairError, RequestError
from diversed.models import smollm2
from diversed.models.layers import check_layers, context_length
from diversed.models.text import decode
from diversed.models.words import frequent_words
from diversed.settings import PairSettings

__all__ = ["BUILT_IN", "Pair", "load_pair", "set_threads"]

BUILT_IN = ("arithmetic", "smollm2")
EMBEDDED = Path(__file__).parent / "arithmetic"

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
LABEL = re.compile(r"[A-Za-z0-9][\w.-]*")
DESCRIPTION_FILES = ["*.json", "*.jinja", "*.model", "*.txt"]
WEIGHT_FILES = ["model*.safetensors", "model.safetensors.index.json"]
SAMPLED_BYTES = 64 * 1024  # at both ends of a weight file's data
GGUF_BYTES = 1024 * 1024


def set_threads(threads: int) -> None:
    """Bound torch's CPU threads in this process (`--pair.threads`)."""
    torch.set_num_threads(threads)


def load_pair(settings: PairSettings) -> "Pair":
    """The pair that `settings` names, checked; no weights are read yet.

    PairError: an unknown name, a model that is missing or cannot be used by the engine, two models that do not share
    one vocabulary, a device or dtype that is not to be had here.
    """
    device = _usable_device(settings.device, getattr(torch, settings.dtype.value))
    target, draft = _sources(settings)
    return Pair(settings, device, _Model.read(target), _Model.read(draft))


class Pair:
    """A target and a draft with one vocabulary. Made by `load_pair`.

    vocab_size: columns that both models' logits are sliced to; a model may have more (padding), which no token has.
    eos_ids:    all ids that end a generation: those of the target's generation config and its tokenizer's.
    pad_id:     filler that no model attends to.
    context:    positions that the target has; a text may outgrow the draft's, `draft_context`, and goes on without it.
    """

    def __init__(self, settings: PairSettings, device: torch.device, target: "_Model", draft: "_Model") -> None:
        self._settings = settings
        self.compiled = settings.compiled
        self.name = settings.name
        self.device = device
        self.dtype: torch.dtype = getattr(torch, settings.dtype.value)
        self._target = target
        self._draft = draft
        self.tokenizer = target.tokenizer
        self.vocab_size = _shared_vocabulary(target, draft)
        self.eos_ids = _eos_ids(target)
        self.pad_id = _pad_id(target, self.eos_ids)
        self.target_dim = int(target.text_config.hidden_size)
        self.draft_dim = int(draft.text_config.hidden_size)
        self.context, self.draft_context = target.context, draft.context

    def __repr__(self) -> str:
        return f"Pair({self.name}: target {self._target.source.name}, draft {self._draft.source.name})"

    @cached_property
    def target(self) -> PreTrainedModel:
        """The target's weights on `device`; loaded at the first use."""
        return self._load(self._target)

    @cached_property
    def draft(self) -> PreTrainedModel:
        """The draft's weights on `device`; loaded at the first use."""
        return self._load(self._draft)

    @cached_property
    def draft_words_K(self) -> Tensor | None:
        """Ids, ascending, of the words that the draft's LM head keeps; None if it keeps all.

        DataError if the file that they are counted in cannot be read.
        """
        settings = self._settings
        if not 0 < settings.draft_words < self.vocab_size or settings.draft_word_counts is None:
            return None
        return frequent_words(
            Path(settings.draft_word_counts), self.tokenizer, settings.draft_words, self.vocab_size, self.eos_ids
        )

    @cached_property
    def identity(self) -> dict[str, str | int]:
        """What a verifier checkpoint belongs to: names, dimensions, and fingerprints of both models' files."""
        return {
            "name": self.name,
            "target": self._target.source.name,
            "draft": self._draft.source.name,
            "target_fingerprint": self._target.source.fingerprint(),
            "draft_fingerprint": self._draft.source.fingerprint(),
            "target_dim": self.target_dim,
            "draft_dim": self.draft_dim,
            "vocab_size": self.vocab_size,
        }

    @property
    def has_chat_template(self) -> bool:
        """Whether the tokenizer says how a conversation is written; see `encode_chat` for what happens without."""
        return self.tokenizer.chat_template is not None

    def encode(self, prompt: str, chat_template: bool = False) -> list[int]:
        """Ids of `prompt`, with the special tokens that the tokenizer itself adds.

        With `chat_template` the prompt is a user's message that asks for an answer; PairError if there is no template.
        """
        if not chat_template:
            return self._known(self.tokenizer(prompt)["input_ids"])
        if not self.has_chat_template:
            raise PairError(f"pair {self.name}: its tokenizer has no chat template; drop --task.chat-template")
        return self.encode_chat([{"role": "user", "content": prompt}])

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a conversation that asks for the next answer; messages have `role` and `content`.

        A tokenizer without a chat template (`has_chat_template` is False) gets the contents joined by newlines.
        RequestError if the template refuses the messages, e.g. a role that it does not know.
        """
        if not self.has_chat_template:
            return self.encode("\n".join(message["content"] for message in messages))
        conversation = [dict(message) for message in messages]
        try:
            ids = self.tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
        except TemplateError as error:
            raise RequestError(f"messages: refused by the chat template of pair {self.name}: {error}") from error
        return self._known(cast("list[int]", ids))

    def decode(self, ids: Sequence[int], stop: Sequence[str] = ()) -> str:
        """Text of `ids` before the first of the `stop` texts; special tokens are skipped, spaces stay as they are."""
        return decode(self.tokenizer, ids, stop)

    def _known(self, ids: Sequence[int]) -> list[int]:
        """`ids`, if the models have all of them; see `_Model.vocabulary` for tokens that they lack."""
        for index in ids:
            if index >= self.vocab_size:
                token = self.tokenizer.convert_ids_to_tokens(index)
                raise RequestError(f"prompt: pair {self.name} has no token {token!r}; leave it out")
        return list(ids)

    def _load(self, model: "_Model") -> PreTrainedModel:
        loaded = model.source.weights(self.dtype)
        torch.nn.Module.to(loaded, self.device).train(False).requires_grad_(False)
        # A checkpoint's sampling filters (top_k, top_p, temperature, penalties) are never inherited.
        loaded.generation_config = GenerationConfig.from_dict(
            {"eos_token_id": list(self.eos_ids) or None, "pad_token_id": self.pad_id}
        )
        return loaded


@dataclass(frozen=True, slots=True)
class _Source:
    """Where one model's files are."""

    name: str  # as the user gave it
    folder: Path
    gguf_file: str | None = None
    hub: tuple[str, str] | None = None  # repository and commit: its weights may still have to be downloaded

    @property
    def arguments(self) -> dict[str, Any]:
        """For transformers' `from_pretrained`; never code from a checkpoint, never the network."""
        gguf = {"gguf_file": self.gguf_file} if self.gguf_file else {}
        return {"pretrained_model_name_or_path": self.folder, "local_files_only": True, **gguf}

    def weights(self, dtype: torch.dtype) -> PreTrainedModel:
        if self.gguf_file is None:
            self._weight_files()
        # Plain weights: with a kernel for packed blocks the model would compute in another dtype than asked for.
        plain: dict[str, Any] = {} if self.gguf_file is None else {"quantization_config": GgufConfig(dequantize=True)}
        with _reading(self.name), _bars_on_a_terminal_only():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                **self.arguments, **plain, dtype=dtype, use_safetensors=True, output_loading_info=True
            )
        model, report = loaded
        if report["missing_keys"]:  # transformers would only warn, and draw them at random
            raise PairError(f"model {self.name}: its files lack weights, e.g. {min(report['missing_keys'])}")
        return cast("PreTrainedModel", model)

    def fingerprint(self) -> str:
        """Digest of the model's files, wherever they lie, without reading all of them: config.json, and of each
        safetensors file the header and both ends of the data; of a GGUF file its size and first MiB."""
        digest = hashlib.blake2b(digest_size=16)
        if self.gguf_file is not None:
            path = self.folder / self.gguf_file
            with path.open("rb") as file:
                digest.update(f"{path.stat().st_size}\n".encode() + file.read(GGUF_BYTES))
            return digest.hexdigest()
        digest.update((self.folder / "config.json").read_bytes())
        for path in self._weight_files():
            with path.open("rb") as file:
                length = file.read(8)
                digest.update(length + file.read(int.from_bytes(length, "little") + SAMPLED_BYTES))
                file.seek(max(file.tell(), path.stat().st_size - SAMPLED_BYTES))
                digest.update(file.read())
        return digest.hexdigest()

    def _weight_files(self) -> list[Path]:
        if self.hub is not None:
            _download(*self.hub, WEIGHT_FILES)
        files = sorted(self.folder.glob(WEIGHT_FILES[0]))
        if not files:
            raise PairError(
                f"model {self.name}: no {WEIGHT_FILES[0]} in {self.folder}; convert or download its weights"
            )
        return files


@dataclass(frozen=True, slots=True)
class _Model:
    """What is known of a model before its weights are read."""

    source: _Source
    text_config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    eos_token_ids: tuple[int, ...]  # of the generation config, else of the config
    context: int

    @classmethod
    def read(cls, source: _Source) -> "_Model":
        with _reading(source.name):
            config = AutoConfig.from_pretrained(**source.arguments)
        check_layers(source.name, config)
        text_config = config.get_text_config(decoder=True)
        with _reading(source.name):
            tokenizer = AutoTokenizer.from_pretrained(**source.arguments)
            generation = GenerationConfig.from_model_config(config)
            if (source.folder / "generation_config.json").is_file() and source.gguf_file is None:
                generation = GenerationConfig.from_pretrained(source.folder, local_files_only=True)
        eos = generation.eos_token_id
        eos_ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),)
        return cls(source, text_config, tokenizer, eos_ids, context_length(source.name, text_config))

    def vocabulary(self) -> dict[str, int]:
        """Id of each token. transformers may add a token of its own to a GGUF file's, past the model's last column."""
        ids = self.tokenizer.get_vocab()
        if self.source.gguf_file is None:
            return ids
        return {token: index for token, index in ids.items() if index < self.text_config.vocab_size}


def _sources(settings: PairSettings) -> tuple[_Source, _Source]:
    """Target and draft of a built-in or a named pair."""
    name = settings.name
    if settings.target is not None and settings.draft is not None:
        if name in BUILT_IN or not LABEL.fullmatch(name):
            raise PairError(
                f"pair.name = {name!r}: beside --pair.target give --pair a label of its own, "
                f"of letters, digits, '-', '_' and '.', and not one of {', '.join(BUILT_IN)}"
            )
        return _source(settings.target, "pair.target"), _source(settings.draft, "pair.draft")
    if name == "arithmetic":
        folders = EMBEDDED / "target", EMBEDDED / "draft"
        fix = "reinstall the package, or run python jobs/make_arithmetic_pair.py"
    elif name == "smollm2":
        folders = smollm2.folders(settings.cache_dir, settings.draft_layers)
        fix = f"run python -m jobs.fetch_smollm2 --pair.draft-layers {settings.draft_layers} (--pair.cache-dir as here)"
    else:
        raise PairError(
            f"pair.name = {name!r}: not a built-in pair ({', '.join(BUILT_IN)}); "
            "for a pair of your own give both --pair.target and --pair.draft: a hub id, a local folder or a .gguf file"
        )
    for folder in folders:
        if not (folder / "config.json").is_file():
            raise PairError(f"pair.name = {name!r}: no model in {folder}; {fix}")
    target, draft = (_Source(f"{name}/{folder.name}", folder) for folder in folders)
    return target, draft


def _source(text: str, field: str) -> _Source:
    path = Path(text).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise PairError(f"{field} = {text!r}: no such .gguf file; give an existing one")
        return _Source(text, path.parent, gguf_file=path.name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise PairError(f"{field} = {text!r}: the folder has no config.json; give a Hugging Face model folder")
        return _Source(text, path)
    if not HUB_ID.fullmatch(text):
        raise PairError(f"{field} = {text!r}: no such folder; give a hub id, a local folder or a .gguf file")
    folder = _download(text, None, DESCRIPTION_FILES)
    return _Source(text, folder, hub=(text, folder.name))


def _download(repository: str, commit: str | None, patterns: list[str]) -> Path:
    try:
        offline = is_offline_mode()  # given on, because huggingface_hub 1 asks for a commit's list of files even then
        return Path(snapshot_download(repository, revision=commit, allow_patterns=patterns, local_files_only=offline))
    except (OSError, ValueError) as error:  # huggingface_hub's errors are OSErrors, its bad names ValueErrors
        raise PairError(
            f"model {repository!r}: neither a local folder nor to be had from the hub; "
            f"give a folder, or check the name, the network and HF_HUB_OFFLINE ({_first_line(error)})"
        ) from error


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Whatever transformers says about files that it cannot read becomes one line."""
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise PairError(f"model {name}: cannot be read: {_first_line(error)}") from error


@contextmanager
def _bars_on_a_terminal_only() -> Iterator[None]:
    """In a log file each step of a progress bar would be a line."""
    if sys.stderr.isatty() or not transformers_logging.is_progress_bar_enabled():
        yield
        return
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _usable_device(name: str, dtype: torch.dtype) -> torch.device:
    """The device, after a trial of what the models need of it."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros((), device=device)
    except (RuntimeError, AssertionError) as error:
        raise PairError(f"pair.device = {name!r}: not to be had here; give auto, cpu, cuda or cuda:N") from error
    try:
        sample_BHTD = torch.ones(1, 1, 2, 8, device=device, dtype=dtype)
        torch.nn.functional.scaled_dot_product_attention(sample_BHTD, sample_BHTD, sample_BHTD) @ sample_BHTD.mT
    except (RuntimeError, NotImplementedError) as error:
        kind = str(dtype).removeprefix("torch.")
        raise PairError(f"pair.dtype = {kind!r}: device {name} cannot compute in it; give float32") from error
    return device


def _shared_vocabulary(target: _Model, draft: _Model) -> int:
    """Number of ids that both models know; PairError unless the same tokens have the same ids."""
    names = f"target {target.source.name} and draft {draft.source.name}"
    of_target, of_draft = target.vocabulary(), draft.vocabulary()
    if of_target != of_draft:
        token = min(
            (token for token in of_target.keys() | of_draft.keys() if of_target.get(token) != of_draft.get(token)),
            key=lambda token: (of_target.get(token, len(of_target)), token),
        )
        raise PairError(
            f"{names} have different vocabularies of {len(of_target)} and {len(of_draft)} tokens: {token!r} has id "
            f"{of_target.get(token, 'none')} and {of_draft.get(token, 'none')}; give two models with one tokenizer"
        )
    for special in ("bos_token_id", "eos_token_id"):
        ids = getattr(target.tokenizer, special), getattr(draft.tokenizer, special)
        if None not in ids and ids[0] != ids[1]:
            raise PairError(f"{names} differ in {special}: {ids[0]} and {ids[1]}; give two models with one tokenizer")
    size = 1 + max(of_target.values())
    for model in (target, draft):
        if model.text_config.vocab_size < size:
            raise PairError(
                f"model {model.source.name}: {model.text_config.vocab_size} logits for a tokenizer of {size} ids; "
                "its weights and its tokenizer do not belong together"
            )
    return size


def _eos_ids(target: _Model) -> tuple[int, ...]:
    own = target.tokenizer.eos_token_id
    return tuple(sorted({*target.eos_token_ids, *([] if own is None else [int(own)])}))


def _pad_id(target: _Model, eos_ids: tuple[int, ...]) -> int:
    own = target.tokenizer.pad_token_id
    return int(own) if own is not None else eos_ids[0] if eos_ids else 0
