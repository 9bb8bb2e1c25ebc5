"""The two roles of speculative decoding, and the messages between them and the loop.

`Drafter` proposes, `Target` scores and judges. The loop (`engine.py`) sees only the protocols: what `propose` returns
is handed to `verify` unopened, so a drafter in a Ray actor may return an object reference. Roles keep caches and
nothing else; lengths, tokens and noise live in the loop and come with each call. Callers are in inference mode.

Shapes: B active rows (slots 0..B-1), K tokens a role has not read yet, N drafted tokens, M = N + 1, X tokens drafted
so far, V vocabulary, D hidden size, L longest history. Messages are NumPy arrays and CPU tensors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad
from transformers.modeling_utils import PreTrainedModel

from diversed.decoding.cache import Array, SlotModel
from diversed.verification import Rule, Verdict, biased, draw, is_drafted, penalised, sampling_law, verify

__all__ = [
    "Array",
    "DraftInput",
    "Drafter",
    "History",
    "LocalDrafter",
    "LocalTarget",
    "PromptLookup",
    "Proposal",
    "Sampling",
    "Target",
    "VerifyInput",
    "Weigh",
    "grown",
]

Weigh = Callable[[Tensor], Tensor]  # features [..., D_draft + D_target] float32 -> w [...] in (0, 1)


@dataclass(slots=True)
class History:
    """Penalties and the text they count, prompt and output up to the block."""

    repetition_B: Tensor
    presence_B: Tensor
    frequency_B: Tensor
    tokens_BL: Tensor
    prompt_B: Tensor  # tokens of the prompt
    total_B: Tensor  # of prompt and output

    def penalised(self, logits_BNV: Tensor, drafted: Sequence[Tensor]) -> Tensor:
        """Position n of N sees the text and, of the drafted tokens, all but the last N - 1 - n."""
        B, N, V = logits_BNV.shape
        X = sum(tokens_BX.shape[1] for tokens_BX in drafted)
        column_L = torch.arange(self.tokens_BL.shape[1], device=logits_BNV.device)
        in_prompt_BL = column_L < self.prompt_B[:, None]
        in_output_BL = ~in_prompt_BL & (column_L < self.total_B[:, None])
        zeros_BV = logits_BNV.new_zeros(B, V, dtype=torch.float32)
        prompt_BV = zeros_BV.scatter_add(1, self.tokens_BL, in_prompt_BL.float())
        output_BNV = zeros_BV.scatter_add(1, self.tokens_BL, in_output_BL.float())[:, None].expand(-1, N, -1)
        if X:
            drafted_BXV = one_hot(torch.cat(list(drafted), 1), V).float().cumsum(1)
            output_BNV = output_BNV + pad(drafted_BXV, (0, 0, 1, 0))[:, X + 1 - N :]
        return penalised(
            logits_BNV, prompt_BV[:, None], output_BNV, self.repetition_B, self.presence_B, self.frequency_B
        )


@dataclass(slots=True)
class Sampling:
    """The sampling law of each row; None where no row needs it."""

    temperature_B: Tensor | None = None
    top_k_B: Tensor | None = None
    top_p_B: Tensor | None = None
    min_p_B: Tensor | None = None
    greedy_B: Tensor | None = None
    bias_tokens_BK: Tensor | None = None
    bias_BK: Tensor | None = None
    history: History | None = None

    def law(self, logits_BNV: Tensor, drafted: Sequence[Tensor]) -> Tensor:
        """The law at N positions, of which the last stands behind all tokens [B, 1] of `drafted`; both models' by the
        same steps: bias, penalties, temperature, top-k, top-p, min-p."""
        if self.bias_tokens_BK is not None and self.bias_BK is not None:
            logits_BNV = biased(logits_BNV, self.bias_tokens_BK, self.bias_BK)
        if self.history is not None:
            logits_BNV = self.history.penalised(logits_BNV, drafted)
        return sampling_law(logits_BNV, self.temperature_B, self.top_k_B, self.top_p_B, self.min_p_B)

    @property
    def is_tempered(self) -> bool:
        """Whether any row has a temperature or filter, greedy ones apart: their laws are soft."""
        return any(value is not None for value in (self.temperature_B, self.top_k_B, self.top_p_B, self.min_p_B))

    def untempered(self, logits_BNV: Tensor, drafted: Sequence[Tensor]) -> Tensor:
        """`law` without temperature and filters."""
        return Sampling(bias_tokens_BK=self.bias_tokens_BK, bias_BK=self.bias_BK, history=self.history).law(
            logits_BNV, drafted
        )

    def to(self, device: torch.device) -> "Sampling":
        return self if device.type == "cpu" else _moved(self, device)


@dataclass(slots=True)
class DraftInput:
    """Draft up to `limit_B` tokens per row after reading `counts_B` of `tokens_BK` at positions `starts_B`."""

    tokens_BK: Array
    counts_B: Array
    starts_B: Array
    limit_B: Array
    u_BN: Tensor  # or more columns
    sampling: Sampling


@dataclass(slots=True)
class Proposal:
    """Drafted tokens with the laws they were drawn from (on the drafter's device)."""

    tokens_BN: Tensor
    drafted_B: Tensor  # valid tokens per row: at most its limit, none after an EOS
    q_BMV: Tensor  # 0 behind a row's valid tokens; the last position never has one
    hidden_BND: Tensor | None
    untempered_BMV: Tensor | None = None  # q before temperature and filters, if asked for and another law

    def to(self, device: torch.device) -> "Proposal":
        return self if self.tokens_BN.device == device else _moved(self, device)


@dataclass(slots=True)
class VerifyInput:
    """Judge a proposal that continues `counts_B` of `tokens_BK`, which the target has not read, at `starts_B`."""

    tokens_BK: Array
    counts_B: Array
    starts_B: Array
    coins_BN: Tensor  # or more columns
    u_BM: Tensor
    sampling: Sampling
    audited: bool = False  # the verdict says what the rule's exact law is at each position


class Drafter(Protocol):
    def reserve(self, slots: int, capacity: int) -> None: ...
    def prefill(self, rows: slice, tokens_BK: Array, start: int) -> None: ...
    def propose(self, block: DraftInput) -> Any: ...
    def move(self, source: int, destination: int, length: int) -> None: ...
    def close(self) -> None: ...


class Target(Protocol):
    def reserve(self, slots: int, capacity: int) -> None: ...
    def prefill(self, rows: slice, tokens_BK: Array, start: int) -> None: ...
    def verify(self, block: VerifyInput, proposal: Any) -> tuple[Verdict, Tensor | None]: ...
    def move(self, source: int, destination: int, length: int) -> None: ...
    def close(self) -> None: ...


class _LocalRole:
    def __init__(self, slots: SlotModel) -> None:
        self.slots = slots

    def reserve(self, slots: int, capacity: int) -> None:
        self.slots.cache.reserve(slots, capacity)

    def prefill(self, rows: slice, tokens_BK: Array, start: int) -> None:
        """Read a piece of prompts (right padded) into `rows` from position `start`."""
        self.slots.forward(rows, self._on_device(tokens_BK), np.full(len(tokens_BK), start), keep=1)

    def move(self, source: int, destination: int, length: int) -> None:
        self.slots.cache.move(source, destination, length)

    def close(self) -> None:
        """Nothing outlives the object."""

    def _on_device(self, values: Array) -> Tensor:
        return torch.from_numpy(values).to(self.slots.device)


class LocalDrafter(_LocalRole):
    """The draft model in this process. `hidden`: also return the vectors that feed its LM head."""

    def __init__(
        self,
        model: PreTrainedModel,
        vocab_size: int,
        eos_ids: tuple[int, ...],
        hidden: bool,
        words_K: Tensor | None = None,
        compiled: bool = False,
        untempered: bool = False,
    ) -> None:
        """`words_K`: the only tokens that are drafted, None for all. `untempered`: proposals carry that law as well."""
        super().__init__(SlotModel(model, vocab_size, words_K, hidden, compiled))
        self.untempered = untempered
        self.ends_V = _table(eos_ids, vocab_size, self.slots.device)
        # Nothing follows an EOS; but asking a GPU would cost more than the forwards that may be saved.
        self._stops_early = bool(eos_ids) and self.slots.device.type == "cpu"
        self._eos_ids = frozenset(eos_ids)

    def propose(self, block: DraftInput) -> Proposal:
        device = self.slots.device
        B = len(block.limit_B)
        rows = slice(0, B)
        sampling, u_N = block.sampling.to(device), block.u_BN.to(device).view(B, -1, 1, 1).unbind(1)
        limits = block.limit_B.tolist()
        N = max(limits)
        starts_NB = block.starts_B + block.counts_B + np.arange(N - 1)[:, None]  # of the forwards after the first
        tokens: list[Tensor] = []
        laws, hiddens, untempered = [], [], []
        goes_on = set(range(B))  # rows without an EOS
        for i in range(N):
            if i == 0:  # a row's newest token matters; what follows it is padding
                feed_BK = self._on_device(block.tokens_BK)
                logits_B1V, hidden_B1D = self.slots.forward_from(rows, feed_BK, block.starts_B, block.counts_B - 1, 1)
            else:
                logits_B1V, hidden_B1D = self.slots.forward(rows, tokens[-1], starts_NB[i - 1])
            q_B1V = sampling.law(logits_B1V, tokens)
            x_B1 = draw(q_B1V, u_N[i])
            if sampling.greedy_B is not None:
                x_B1 = torch.where(sampling.greedy_B[:, None], q_B1V.argmax(-1), x_B1)
            tokens.append(x_B1)
            laws.append(q_B1V)
            if hidden_B1D is not None:
                hiddens.append(hidden_B1D)
            if self.untempered and sampling.is_tempered:
                untempered.append(sampling.untempered(logits_B1V, tokens[:-1]))
            if self._stops_early:
                drawn = [token for (token,) in x_B1.tolist()]
                if not self._eos_ids.isdisjoint(drawn):
                    goes_on -= {row for row, token in enumerate(drawn) if token in self._eos_ids}
                    if not goes_on:
                        break
        x_BN = torch.cat(tokens, 1)
        drafted_B = self._on_device(block.limit_B)
        if len(goes_on) < B or not self._stops_early:
            drafted_B = _until_end(self.ends_V[x_BN], drafted_B)
        hidden_BND = torch.cat(hiddens, 1) if hiddens else None
        nothing_B1V = _zeros(B, self.slots.vocab_size, device)
        q_BMV = torch.cat([*laws, nothing_B1V], 1)
        untempered_BMV = torch.cat([*untempered, nothing_B1V], 1) if untempered else None
        if not self._stops_early or len(goes_on) < B or min(limits) < N:  # rows may have drafted less than others
            is_drafted_BM1 = is_drafted(len(laws) + 1, drafted_B)[..., None]
            q_BMV *= is_drafted_BM1
            if untempered_BMV is not None:
                untempered_BMV *= is_drafted_BM1
        return Proposal(x_BN, drafted_B, q_BMV, hidden_BND, untempered_BMV)


class PromptLookup:
    """A drafter without a model: it proposes what followed the last occurrence of the text's newest tokens.

    The longest n-gram counts, up to `ngram` tokens; without any match nothing is drafted. q is one-hot. Its cache holds
    the tokens themselves.
    """

    def __init__(self, vocab_size: int, eos_ids: tuple[int, ...], ngram: int) -> None:
        self.vocab_size, self.ngram = vocab_size, ngram
        self.ends_V = _table(eos_ids, vocab_size, torch.device("cpu"))
        self._text_SC = np.zeros((0, 0), dtype=np.int64)

    def reserve(self, slots: int, capacity: int) -> None:
        self._text_SC = grown(self._text_SC, slots, capacity)

    def prefill(self, rows: slice, tokens_BK: Array, start: int) -> None:
        self._text_SC[rows, start : start + tokens_BK.shape[1]] = tokens_BK

    def move(self, source: int, destination: int, length: int) -> None:
        self._text_SC[destination, :length] = self._text_SC[source, :length]

    def close(self) -> None:
        """Nothing outlives the object."""

    def propose(self, block: DraftInput) -> Proposal:
        B, K = block.tokens_BK.shape
        N = int(block.limit_B.max())
        text_BC = self._text_SC[:B]
        np.put_along_axis(text_BC, block.starts_B[:, None] + np.arange(K), block.tokens_BK, 1)
        total_B = block.starts_B + block.counts_B
        x_BN, found_B = _continuation(text_BC, total_B, self.ngram, N)
        limit_B = np.minimum(block.limit_B, found_B)
        width = max(int(limit_B.max()), 1)
        x_BN = x_BN[:, :width]
        np.put_along_axis(text_BC, total_B[:, None] + np.arange(width), x_BN, 1)
        tokens_BN = torch.from_numpy(x_BN)
        drafted_B = _until_end(self.ends_V[tokens_BN], torch.from_numpy(limit_B))
        q_BNV = one_hot(tokens_BN, self.vocab_size).float() * is_drafted(width, drafted_B)[..., None]
        return Proposal(tokens_BN, drafted_B, pad(q_BNV, (0, 0, 0, 1)), None)


class LocalTarget(_LocalRole):
    """The target model and the rule in this process. `weigh` gives w where the rule's weight is learned; `collect`
    returns the features of each position."""

    def __init__(
        self,
        model: PreTrainedModel,
        vocab_size: int,
        rule: Rule,
        weigh: Weigh | None,
        collect: bool,
        compiled: bool = False,
    ) -> None:
        wants_hidden = collect or rule.weight is None
        super().__init__(SlotModel(model, vocab_size, None, wants_hidden, compiled))
        self.rule, self.weigh, self.collect = rule, weigh, collect

    def verify(self, block: VerifyInput, proposal: Proposal | None) -> tuple[Verdict, Tensor | None]:
        """`proposal` None is one autoregressive step."""
        device = self.slots.device
        B = len(block.counts_B)
        sampling = block.sampling.to(device)
        feed_BX = self._on_device(block.tokens_BK)
        if proposal is None:
            x_BN, N = feed_BX[:, :0], 0
        else:  # each row's drafted tokens stand right behind what it has to read
            proposal = proposal.to(device)
            x_BN, N = proposal.tokens_BN, proposal.tokens_BN.shape[1]
            if feed_BX.shape[1] == 1:
                feed_BX = torch.cat([feed_BX, x_BN], 1)
            else:
                behind_BN = self._on_device(block.counts_B[:, None] + np.arange(N))
                feed_BX = pad(feed_BX, (0, N)).scatter_(1, behind_BN, x_BN)
        logits_BMV, hidden_BMD = self.slots.forward_from(
            slice(0, B), feed_BX, block.starts_B, block.counts_B - 1, N + 1
        )
        drafted = x_BN.split(1, 1) if sampling.history is not None else ()
        p_BMV = sampling.law(logits_BMV, drafted)
        untempered = None
        if self.rule.untempered and proposal is not None and sampling.is_tempered:
            q0_BMV = proposal.q_BMV if proposal.untempered_BMV is None else proposal.untempered_BMV
            untempered = (sampling.untempered(logits_BMV, drafted), q0_BMV)
        features_BMD = None
        if hidden_BMD is not None and proposal is not None and proposal.hidden_BND is not None:
            features_BMD = torch.cat([pad(proposal.hidden_BND, (0, 0, 0, 1)), hidden_BMD], -1)
        w_BN: Tensor | None = None
        if self.rule.weight is None and features_BMD is not None and self.weigh is not None:
            w_BN = self.weigh(features_BMD[:, :N])
        verdict = verify(
            p_BMV,
            p_BMV[:, :0] if proposal is None else proposal.q_BMV,
            x_BN,
            torch.zeros(B, dtype=torch.long, device=device) if proposal is None else proposal.drafted_B,
            self.rule,
            block.coins_BN[:, :N].to(device),
            block.u_BM[:, : N + 1].to(device),
            sampling.greedy_B,
            w_BN,
            untempered,
            block.audited,
        )
        return verdict.cpu(), features_BMD.cpu() if self.collect and features_BMD is not None else None


def grown(old: Any, slots: int, length: int) -> Any:
    """`old` [..., S, T] with at least `slots` and `length`, filled up with zeros."""
    S, T = old.shape[-2:]
    if slots <= S and length <= T:
        return old
    new = np.zeros((*old.shape[:-2], max(slots, S), max(length, T)), dtype=old.dtype)
    new[..., :S, :T] = old
    return new


def _table(ids: Sequence[int], vocab_size: int, device: torch.device) -> Tensor:
    """Whether a token is one of `ids`, [V] bool."""
    table_V = torch.zeros(vocab_size, dtype=torch.bool, device=device)
    table_V[[token for token in ids if token < vocab_size]] = True
    return table_V


@cache
def _zeros(B: int, V: int, device: torch.device) -> Tensor:
    """[B, 1, V]: read only."""
    with torch.inference_mode(mode=False):
        return torch.zeros(B, 1, V, device=device)


def _until_end(is_end_BN: Tensor, limit_B: Tensor) -> Tensor:
    """Tokens up to the first end, itself included, at most `limit_B`, [B]."""
    N = is_end_BN.shape[1]
    first_B = torch.where(is_end_BN.any(1), is_end_BN.long().argmax(1) + 1, N)
    return torch.minimum(first_B, limit_B)


def _continuation(text_BC: Array, total_B: Array, ngram: int, N: int) -> tuple[Array, Array]:
    """What followed the last earlier occurrence of each text's longest possible suffix of at most `ngram` tokens:
    [B, N] tokens and how many of them there are, [B] (0: no match)."""
    B, C = text_BC.shape
    column_C = np.arange(C)
    start_B = np.zeros(B, dtype=np.int64)  # where the continuation begins; 0: no match
    agrees_BC = np.ones((B, C), dtype=bool)  # the n tokens before this position are those before the text's end
    for n in range(1, ngram + 1):
        token_B1 = np.take_along_axis(text_BC, np.maximum(total_B - n, 0)[:, None], 1)
        shifted_BC = np.zeros((B, C), dtype=bool)
        shifted_BC[:, n:] = (text_BC == token_B1)[:, : C - n]
        agrees_BC &= shifted_BC & (column_C < total_B[:, None]) & (total_B >= n)[:, None]
        last_B = C - 1 - agrees_BC[:, ::-1].argmax(1)
        start_B = np.where(agrees_BC.any(1), last_B, start_B)
    found_B = np.where(start_B > 0, np.minimum(total_B - start_B, N), 0)
    index_BN = np.minimum(start_B[:, None] + np.arange(N), C - 1)
    return np.take_along_axis(text_BC, index_BN, 1), found_B


def _moved(record: Any, device: torch.device) -> Any:
    """A copy of a record of tensors (and records of tensors) on `device`."""

    def moved(value: Any) -> Any:
        if value is None:
            return None
        return value.to(device) if isinstance(value, Tensor) else _moved(value, device)

    return type(record)(*(moved(getattr(record, name)) for name in record.__slots__))
