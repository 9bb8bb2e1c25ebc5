"""Hugging Face `generate` as the yardstick outside this platform: plain sampling, and its assisted generation (strict).

The only place that knows the names of transformers' generation options.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from diversed.models import Pair
from diversed.settings import DecodeSettings

__all__ = ["HuggingFace"]


class HuggingFace:
    """`generate` of the pair's target with the sampling law of `decode`; with the pair's draft if `assisted`.

    Each call has its own seed: transformers draws from torch's global generator, whose state is put back afterwards.
    """

    def __init__(self, pair: Pair, decode: DecodeSettings, assisted: bool) -> None:
        self._pair = pair
        self._draft_length = decode.draft_length if assisted else None
        sampling = {"temperature": decode.temperature, "top_k": decode.top_k, "top_p": decode.top_p}
        greedy = decode.temperature == 0
        self._options = {"do_sample": not greedy, **({} if greedy else sampling)}

    def __call__(self, prompt_ids: Sequence[int], max_new_tokens: int, seed: int) -> int:
        """Continue one prompt; the number of tokens generated, EOS included."""
        pair = self._pair
        config = self._config(max_new_tokens=max_new_tokens, **self._options)
        ids_1T = torch.tensor([list(prompt_ids)], device=pair.device)
        devices = [pair.device] if pair.device.type == "cuda" else []
        with torch.random.fork_rng(devices), self._assistant() as assistant, _quiet(), torch.inference_mode():
            torch.manual_seed(seed)
            target: Any = pair.target
            output_1T = target.generate(
                ids_1T, attention_mask=torch.ones_like(ids_1T), generation_config=config, assistant_model=assistant
            )
            return len(output_1T[0].tolist()) - len(prompt_ids)

    @contextmanager
    def _assistant(self) -> Iterator[PreTrainedModel | None]:
        """The draft, told to draft a constant number of tokens; its own options are put back afterwards."""
        if self._draft_length is None:
            yield None
            return
        draft = self._pair.draft
        own = draft.generation_config
        draft.generation_config = self._config(
            num_assistant_tokens=self._draft_length,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=0.0,  # 0 switches the early stop off
        )
        try:
            yield draft
        finally:
            draft.generation_config = own

    def _config(self, **options: Any) -> GenerationConfig:
        eos_ids = list(self._pair.eos_ids) or None
        return GenerationConfig(eos_token_id=eos_ids, pad_token_id=self._pair.pad_id, **options)


@contextmanager
def _quiet() -> Iterator[None]:
    """Assisted generation warns about how it calls itself."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)
