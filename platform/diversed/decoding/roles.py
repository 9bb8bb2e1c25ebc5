"""The two roles of speculative decoding, and the messages between them and the loop.

`Drafter` proposes, `Target` scores and judges. The loop (`engine.py`) sees only the protocols: what `propose` returns
is handed to `verify` unopened, so a drafter in a Ray actor may return an object reference. Roles keep caches and
nothing else; lengths, tokens and noise live in the loop and come with each call.

Shapes: B active rows (slots 0..B-1), K tokens the drafter has not read yet, N drafted tokens, M = N + 1, V vocabulary,
D hidden size. Messages are CPU tensors.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from diversed.decoding.cache import SlotModel
from diversed.verification import Rule, Verdict, draw, sampling_law, verify

__all__ = [
    "DraftInput",
    "Drafter",
    "LocalDrafter",
    "LocalTarget",
    "Proposal",
    "Sampling",
    "Target",
    "VerifyInput",
    "Weigh",
]

Weigh = Callable[[Tensor], Tensor]  # features [..., D_draft + D_target] float32 -> w [...] in (0, 1)


@dataclass(slots=True)
class Sampling:
    """The sampling law of each row; None where no row needs it."""

    temperature_B: Tensor | None = None
    top_k_B: Tensor | None = None
    top_p_B: Tensor | None = None
    greedy_B: Tensor | None = None

    def law(self, logits_BNV: Tensor) -> Tensor:
        return sampling_law(logits_BNV, self.temperature_B, self.top_k_B, self.top_p_B)

    def to(self, device: torch.device) -> "Sampling":
        fields = (getattr(self, name) for name in self.__slots__)
        return Sampling(*(None if value is None else value.to(device) for value in fields))


@dataclass(slots=True)
class DraftInput:
    """Draft up to `limit_B` tokens per row after reading `counts_B` of `tokens_BK` at positions `starts_B`."""

    tokens_BK: Tensor
    counts_B: Tensor
    starts_B: Tensor
    limit_B: Tensor
    u_BN: Tensor
    sampling: Sampling


@dataclass(slots=True)
class Proposal:
    """Drafted tokens with the laws they were drawn from (on the drafter's device)."""

    tokens_BN: Tensor
    drafted_B: Tensor  # valid tokens per row: at most its limit, none after an EOS
    q_BNV: Tensor
    hidden_BND: Tensor | None

    def to(self, device: torch.device) -> "Proposal":
        fields = (getattr(self, name) for name in self.__slots__)
        return Proposal(*(None if value is None else value.to(device) for value in fields))  # type: ignore[arg-type]


@dataclass(slots=True)
class VerifyInput:
    """Judge a proposal that continues `counts_B` of `tokens_BK`, which the target has not read, at `starts_B`."""

    tokens_BK: Tensor
    counts_B: Tensor
    starts_B: Tensor
    coins_BN: Tensor
    u_BM: Tensor
    sampling: Sampling


class Drafter(Protocol):
    def reserve(self, slots: int, capacity: int) -> None: ...
    def prefill(self, rows: slice, tokens_BK: Tensor) -> None: ...
    def propose(self, block: DraftInput) -> Any: ...
    def move(self, source: int, destination: int, length: int) -> None: ...
    def close(self) -> None: ...


class Target(Protocol):
    def reserve(self, slots: int, capacity: int) -> None: ...
    def prefill(self, rows: slice, tokens_BK: Tensor) -> None: ...
    def verify(self, block: VerifyInput, proposal: Any) -> tuple[Verdict, Tensor | None]: ...
    def move(self, source: int, destination: int, length: int) -> None: ...
    def close(self) -> None: ...


class _LocalRole:
    def __init__(self, model: PreTrainedModel, vocab_size: int) -> None:
        self.slots = SlotModel(model, vocab_size)

    def reserve(self, slots: int, capacity: int) -> None:
        self.slots.cache.reserve(slots, capacity)

    def prefill(self, rows: slice, tokens_BK: Tensor) -> None:
        self.slots.prefill(rows, tokens_BK)

    def move(self, source: int, destination: int, length: int) -> None:
        self.slots.cache.move(source, destination, length)

    def close(self) -> None:
        """Nothing outlives the object."""


class LocalDrafter(_LocalRole):
    """The draft model in this process. `hidden`: also return the vectors that feed its LM head."""

    def __init__(self, model: PreTrainedModel, vocab_size: int, eos_ids: tuple[int, ...], hidden: bool) -> None:
        super().__init__(model, vocab_size)
        self.eos_E = torch.tensor(eos_ids, device=self.slots.device)
        self.hidden = hidden

    @torch.inference_mode()
    def propose(self, block: DraftInput) -> Proposal:
        device = self.slots.device
        rows = slice(0, len(block.counts_B))
        sampling, u_BN = block.sampling.to(device), block.u_BN.to(device)
        N = int(block.limit_B.max())
        ended_B = torch.zeros(len(block.limit_B), dtype=torch.bool, device=device)
        tokens, ends, laws, hiddens = [], [], [], []
        feed_BK, starts_B = block.tokens_BK, block.starts_B
        for i in range(N):
            if i == 0:  # a row's newest token matters; what follows it is padding
                logits_B1V, hidden_B1D = self.slots.forward_from(
                    rows, feed_BK, starts_B, block.counts_B - 1, 1, self.hidden
                )
            else:
                logits_B1V, hidden_B1D = self.slots.forward(rows, feed_BK, starts_B, self.hidden)
            q_B1V = sampling.law(logits_B1V)
            x_B = draw(q_B1V[:, 0], u_BN[:, i])
            if sampling.greedy_B is not None:
                x_B = torch.where(sampling.greedy_B, q_B1V[:, 0].argmax(-1), x_B)
            tokens.append(x_B)
            laws.append(q_B1V)
            if hidden_B1D is not None:
                hiddens.append(hidden_B1D)
            ends.append(ended_B)
            ended_B = ended_B | (x_B[:, None] == self.eos_E).any(-1)
            if i == N - 1 or bool(ended_B.all()):
                break
            starts_B = block.starts_B + block.counts_B + i
            feed_BK = x_B[:, None].cpu()
        drafted_B = torch.minimum((~torch.stack(ends, 1)).sum(-1), block.limit_B.to(device))
        hidden_BND = torch.cat(hiddens, 1) if hiddens else None
        return Proposal(torch.stack(tokens, 1), drafted_B, torch.cat(laws, 1), hidden_BND)


class LocalTarget(_LocalRole):
    """The target model and the rule in this process. `weigh` gives w where the rule's weight is learned; `collect`
    returns the features of each position."""

    def __init__(self, model: PreTrainedModel, vocab_size: int, rule: Rule, weigh: Weigh | None, collect: bool) -> None:
        super().__init__(model, vocab_size)
        self.rule, self.weigh, self.collect = rule, weigh, collect

    @torch.inference_mode()
    def verify(self, block: VerifyInput, proposal: Proposal | None) -> tuple[Verdict, Tensor | None]:
        """`proposal` None is one autoregressive step."""
        device = self.slots.device
        B = len(block.tokens_BK)
        sampling = block.sampling.to(device)
        feed_BX, x_BN = block.tokens_BK, block.tokens_BK[:, :0]
        if proposal is not None:  # each row's drafted tokens stand right behind what it has to read
            proposal, x_BN = proposal.to(device), proposal.tokens_BN.cpu()
            behind_BN = block.counts_B[:, None] + torch.arange(x_BN.shape[1])
            feed_BX = torch.nn.functional.pad(feed_BX, (0, x_BN.shape[1])).scatter(1, behind_BN, x_BN)
        N = x_BN.shape[1]
        wants_hidden = self.collect or (self.weigh is not None and proposal is not None)
        logits_BMV, hidden_BMD = self.slots.forward_from(
            slice(0, B), feed_BX, block.starts_B, block.counts_B - 1, N + 1, wants_hidden
        )
        p_BMV = sampling.law(logits_BMV)
        features_BMD = None
        if hidden_BMD is not None and proposal is not None and proposal.hidden_BND is not None:
            features_BMD = torch.cat([torch.nn.functional.pad(proposal.hidden_BND, (0, 0, 0, 1)), hidden_BMD], -1)
        w_BN: Tensor | float = 1.0 if self.rule.weight is None else self.rule.weight
        if self.rule.weight is None and features_BMD is not None and self.weigh is not None:
            w_BN = self.weigh(features_BMD[:, :N])
        verdict = verify(
            p_BMV,
            p_BMV[:, :0] if proposal is None else proposal.q_BNV,
            x_BN.to(device),
            torch.zeros(B, dtype=torch.long, device=device) if proposal is None else proposal.drafted_B,
            w_BN,
            block.coins_BN[:, :N].to(device),
            block.u_BM[:, : N + 1].to(device),
            sampling.greedy_B,
            self.rule.cap,
        )
        return verdict.cpu(), features_BMD.cpu() if self.collect and features_BMD is not None else None
