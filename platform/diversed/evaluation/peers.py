"""Hugging Face `generate` as the yardstick outside this platform: plain sampling, and its assisted generation, strict
or with the static ensemble.

The only place that knows the names of transformers' generation options and candidate generators.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.candidate_generator import AssistedCandidateGenerator
from transformers.utils import logging as transformers_logging

from diversed.models import Pair
from diversed.settings import DecodeSettings

__all__ = ["NOTHING", "HuggingFace", "Tally"]


@dataclass(frozen=True, slots=True)
class Tally:
    """What generations did, in the terms of `diversed.decoding.Generation`."""

    tokens: int  # generated, EOS included
    rounds: int  # target forwards
    drafted: int = 0
    accepted: int = 0  # drafted tokens that were emitted
    verified: int = 0  # drafted tokens that were judged: those accepted, and the first one rejected of each round

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


NOTHING = Tally(0, 0)


class HuggingFace:
    """`generate` of the pair's target with the sampling law of `decode`; with the pair's draft if `assisted`, and then
    with the static ensemble of `ensemble_weight` in (0, 1) on the target instead of the strict rule.

    Each call has its own seed: transformers draws from torch's global generator, whose state is put back afterwards.
    """

    def __init__(
        self, pair: Pair, decode: DecodeSettings, assisted: bool, ensemble_weight: float | None = None
    ) -> None:
        self._pair = pair
        self._draft_length = decode.draft_length if assisted else None
        sampling = {"temperature": decode.temperature, "top_k": decode.top_k, "top_p": decode.top_p}
        greedy = decode.temperature == 0
        self._options = {"do_sample": not greedy, **({} if greedy else sampling)}
        if ensemble_weight is not None:
            self._options["assistant_ensemble_weight"] = ensemble_weight

    def __call__(self, prompt_ids: Sequence[int], max_new_tokens: int, seed: int) -> int:
        """Continue one prompt; the number of tokens generated, EOS included."""
        return len(self.generate(prompt_ids, max_new_tokens, seed)[0])

    def generate(self, prompt_ids: Sequence[int], max_new_tokens: int, seed: int) -> tuple[list[int], Tally]:
        """Continue one prompt: the tokens generated, EOS included, and how they came about."""
        pair = self._pair
        config = self._config(max_new_tokens=max_new_tokens, **self._options)
        ids_1T = torch.tensor([list(prompt_ids)], device=pair.device)
        devices = [pair.device] if pair.device.type == "cuda" else []
        with (
            torch.random.fork_rng(devices),
            self._assistant() as assistant,
            _counted_rounds() as rounds,
            _quiet(),
            torch.inference_mode(),
        ):
            torch.manual_seed(seed)
            target: Any = pair.target
            output_1T = target.generate(
                ids_1T, attention_mask=torch.ones_like(ids_1T), generation_config=config, assistant_model=assistant
            )
        tokens = output_1T[0, len(prompt_ids) :].tolist()
        if assistant is None:
            return tokens, Tally(len(tokens), len(tokens))
        return tokens, sum(rounds, NOTHING)

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


@contextmanager
def _counted_rounds() -> Iterator[list[Tally]]:
    """A tally of each round of assisted generation, seen where a round begins and ends: the candidate generator.

    What is accepted is the common prefix of the candidates and what was emitted: a replacement is never the token that
    was rejected, since its law is zero there. (transformers' own count of matches leaves out an accepted EOS.)
    """
    rounds: list[Tally] = []
    kept = AssistedCandidateGenerator.get_candidates, AssistedCandidateGenerator.update_candidate_strategy
    begun: list[tuple[int, torch.Tensor]] = []  # length before the round, candidates behind it

    def get_candidates(self: Any, input_ids: Any, **options: Any) -> Any:
        candidates, logits = kept[0](self, input_ids, **options)
        begun[:] = [(input_ids.shape[1], candidates)]
        return candidates, logits

    def update_candidate_strategy(self: Any, input_ids: Any, scores: Any, num_matches: int) -> Any:
        before, candidates = begun[0]
        drafted, emitted = candidates[0, before:].tolist(), input_ids[0, before:].tolist()
        same = [one == other for one, other in zip(drafted, emitted, strict=False)]
        accepted = (*same, False).index(False)
        rounds.append(Tally(len(emitted), 1, len(drafted), accepted, min(accepted + 1, len(drafted))))
        return kept[1](self, input_ids, scores, num_matches)

    patched: Any = AssistedCandidateGenerator
    patched.get_candidates, patched.update_candidate_strategy = get_candidates, update_candidate_strategy
    try:
        yield rounds
    finally:
        patched.get_candidates, patched.update_candidate_strategy = kept
