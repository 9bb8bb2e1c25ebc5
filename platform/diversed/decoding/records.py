"""What goes into the engine and what comes out of it. Plain records; no model, no cache.

Shapes: T emitted tokens of one request, R rounds, D features (draft's hidden size + target's).
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

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

    @classmethod
    def of(cls, prompt_ids: list[int], max_new_tokens: int, seed: int, decode: DecodeSettings) -> "Request":
        """A request with the sampling law of `decode`."""
        return cls(tuple(prompt_ids), max_new_tokens, seed, decode.temperature, decode.top_k, decode.top_p)


@dataclass(slots=True)
class Generation:
    """The engine's answer to one request; tensors are on the CPU."""

    request: Request
    tokens: list[int]  # emitted tokens, EOS included if it was emitted
    finish_reason: str  # "stop": EOS; "length": max_new_tokens
    kind_T: Tensor  # Kind of each token
    p_T: Tensor  # target's probability of each token
    q_T: Tensor  # draft's; 0 for bonus tokens
    tv_T: Tensor  # TV(p, q) at the position; 0 for bonus tokens
    w_T: Tensor  # weight on the target; 1 for bonus tokens
    accepted_R: Tensor  # drafted tokens accepted, per round
    drafted_R: Tensor  # drafted tokens verified, per round
    features_TD: Tensor | None = field(default=None)  # [draft's, target's] last hidden states, if collected

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
