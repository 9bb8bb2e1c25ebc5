"""What goes into the engine and what comes out of it. Plain records; no model, no cache.

Shapes: T emitted tokens of one request, R rounds, D features (draft's hidden size + target's).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from diversed.errors import RequestError
from diversed.seeding import derive_seed
from diversed.settings import DecodeSettings
from diversed.verification import Kind

__all__ = ["Generation", "Request"]


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and how to continue it. `seed` alone fixes the noise: the same request gives the same tokens
    alone, in a batch, in another placement."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    seed: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, what is added to its logit); -inf bans it
    stop: tuple[str, ...] = ()  # the output ends with the token that completes one of these texts
    audited: bool = False  # the answer says what the rule's exact law was at each position

    @classmethod
    def of(
        cls, prompt_ids: Sequence[int], max_new_tokens: int, seed: int, decode: DecodeSettings, audited: bool = False
    ) -> "Request":
        """A request with the sampling law of `decode`."""
        return cls(
            prompt_ids=tuple(prompt_ids),
            max_new_tokens=max_new_tokens,
            seed=seed,
            temperature=decode.temperature,
            top_k=decode.top_k,
            top_p=decode.top_p,
            min_p=decode.min_p,
            repetition_penalty=decode.repetition_penalty,
            presence_penalty=decode.presence_penalty,
            frequency_penalty=decode.frequency_penalty,
            stop=tuple(decode.stop),
            audited=audited,
        )

    @property
    def noise_T3(self) -> Tensor:
        """Uniform numbers of each output position, float64: for the draft's draw, the acceptance, the last token's
        draw."""
        generator = torch.Generator().manual_seed(self.seed)
        return torch.rand(self.max_new_tokens, 3, generator=generator, dtype=torch.float64)

    def samples(self, n: int) -> list["Request"]:
        """`n` requests that differ in their noise alone; the first is this one."""
        return [self, *(replace(self, seed=derive_seed(self.seed, "sample", i)) for i in range(1, n))]

    def check(self, vocab_size: int) -> None:
        """RequestError, one line, for the first field that no engine could use."""
        if not self.prompt_ids:
            raise RequestError("prompt: has no token; give at least one")
        if self.max_new_tokens < 1:
            raise RequestError(f"max_new_tokens = {self.max_new_tokens}: give at least 1")
        for token, bias in self.logit_bias:
            if not 0 <= token < vocab_size:
                raise RequestError(f"logit_bias: token {token} is not in the vocabulary of {vocab_size}")
            if bias != bias or bias == float("inf"):
                raise RequestError(f"logit_bias: {bias} for token {token}; give a finite number, or -inf to ban it")
        if not self.repetition_penalty > 0:
            raise RequestError(f"repetition_penalty = {self.repetition_penalty}: give a number above 0; 1 is off")
        if "" in self.stop:
            raise RequestError("stop: an empty text would end every output; leave it out")


@dataclass(slots=True)
class Generation:
    """The engine's answer to one request; tensors are on the CPU."""

    request: Request
    tokens: list[int]  # emitted tokens, EOS included if it was emitted
    finish_reason: str  # "stop": EOS or a stop text; "length": max_new_tokens
    kind_T: Tensor  # Kind of each token
    p_T: Tensor  # target's probability of each token, under the request's sampling law
    q_T: Tensor  # draft's; 0 for bonus tokens
    tv_T: Tensor  # TV(p, q) at the position; 0 for bonus tokens
    w_T: Tensor  # weight on the target; 1 for bonus tokens
    accepted_R: Tensor  # drafted tokens accepted, per round
    drafted_R: Tensor  # drafted tokens verified, per round
    features_TD: Tensor | None = field(default=None)  # [draft's, target's] last hidden states, if collected
    audit_TA: Tensor | None = field(default=None)  # `AUDIT`'s numbers of each position, if asked for

    @property
    def rounds(self) -> int:
        """Target forwards after the prompt."""
        return len(self.accepted_R)

    @property
    def accepted(self) -> int:
        return int(self.accepted_R.sum())

    @property
    def drafted(self) -> int:
        return int(self.drafted_R.sum())

    @property
    def verified(self) -> int:
        """Drafted tokens that were judged: those accepted and those replaced (the walk ends at a rejection)."""
        return int(((self.kind_T == Kind.ACCEPTED) | (self.kind_T == Kind.REPLACEMENT)).sum())

    @property
    def mask_T(self) -> Tensor:
        """1 where verification decided the token (accepted or replaced), 0 for bonus tokens."""
        return (self.kind_T != Kind.BONUS).to(torch.float32)

    @property
    def target_logprobs_T(self) -> Tensor:
        """log p of each token: under the target's own law, whatever rule let the token through."""
        return self.p_T.log()

    @property
    def verification_logprobs_T(self) -> Tensor:
        """log v of each token, v = w*p + (1-w)*q: the law an uncapped ensemble emits it from; log p where w = 1."""
        return (self.w_T * self.p_T + (1 - self.w_T) * self.q_T).log()
