"""The one speculative loop, for every method, batch size and placement.

A round: the drafter reads what it has not read yet and drafts up to N tokens per row; the target scores them in one
forward and judges; each row emits its accepted tokens and one more. Rows are slots 0..B-1 of both caches: the last row
moves into a finished row's slot (one copy per finished request) and new requests join at the end, so the active rows
stay a prefix and every forward is a view of the caches.

Noise is indexed by (request, output position, purpose): draft draw, acceptance coin, replacement or bonus draw. Numbers
of positions after a rejection were not looked at by anything emitted, so reading them again at the redraft is exact,
and a row's tokens depend neither on its neighbours nor on where the roles run.

Shapes: S slots, B active rows, T output positions, N drafted, M = N + 1.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from diversed.decoding.cache import PREFILL_CHUNK
from diversed.decoding.records import Generation, Request
from diversed.decoding.roles import Drafter, DraftInput, LocalDrafter, LocalTarget, Sampling, Target, VerifyInput, Weigh
from diversed.errors import ConfigError, RequestError
from diversed.models import Pair
from diversed.settings import DecodeSettings, Method
from diversed.verification import Rule, Verdict

__all__ = ["Engine", "build_engine"]

DRAFT, COIN, LAST = range(3)  # purposes of the noise


class Engine:
    """Continuous batching over a drafter and a target. Not thread-safe; one `generate` or `stream` at a time."""

    def __init__(
        self,
        drafter: Drafter | None,
        target: Target,
        draft_length: int,
        slots: int,
        eos_ids: Sequence[int],
        context: int,
    ) -> None:
        """`drafter` None is autoregressive decoding. `context`: positions that both models can hold."""
        self.drafter, self.target = drafter, target
        self.draft_length = draft_length if drafter is not None else 0
        self.slots, self.context = slots, context
        self._eos_E = torch.tensor(sorted(eos_ids))
        self._rows: list[tuple[int, Request]] = []  # (ticket, request) of slots 0..B-1
        self._sampling = Sampling()  # of the active rows
        self._unread: tuple[Tensor, Tensor] | None = None  # prompts [B, K] and their lengths [B], if no role read them
        self._capacity = 0  # output positions per slot
        self._noise_ST3 = torch.zeros(0, 0, 3, dtype=torch.float64)
        self._out: dict[str, Tensor] = {}  # per output position, [S, T, ...]
        self._state: dict[str, Tensor] = {}  # per slot, [S]

    # -- what callers use ----------------------------------------------------------------------------------------

    def generate(self, requests: Sequence[Request], progress: Callable[[int], None] | None = None) -> list[Generation]:
        """Continue all `requests`; answers come in their order. `progress` gets the number finished so far.

        RequestError if one is empty or too long for the context; then nothing is run.
        """
        for request in requests:
            self._check(request)
        waiting = deque(enumerate(requests))
        answers: list[Generation | None] = [None] * len(requests)
        done = 0
        try:
            while waiting or self._rows:
                self._admit(waiting)
                for ticket, generation in self._round():
                    answers[ticket] = generation
                    done += 1
                if progress is not None:
                    progress(done)
        finally:
            self._clear()  # after an error too: the next call starts from empty slots
        return [answer for answer in answers if answer is not None]

    def stream(self, request: Request) -> Iterator[tuple[list[int], Generation | None]]:
        """New tokens of each round; the last item carries the whole Generation. Closing the iterator frees the row."""
        self._check(request)
        seen = 0
        try:
            self._admit(deque([(0, request)]))
            while self._rows:
                finished = self._round()
                generation = finished[0][1] if finished else None
                length = len(generation.tokens) if generation else int(self._state["length"][0])
                fresh = generation.tokens[seen:] if generation else self._out["tokens"][0, seen:length].tolist()
                seen = length
                yield fresh, generation
        finally:
            self._clear()

    def close(self) -> None:
        """Free what the roles hold outside this process."""
        for role in (self.drafter, self.target):
            if role is not None:
                role.close()

    def _clear(self) -> None:
        self._rows.clear()
        self._unread = None

    # -- rows ----------------------------------------------------------------------------------------------------

    def _check(self, request: Request) -> None:
        if not request.prompt_ids:
            raise RequestError("prompt: has no token; give at least one")
        if request.max_new_tokens < 1:
            raise RequestError(f"max_new_tokens = {request.max_new_tokens}: give at least 1")
        prompt, new = len(request.prompt_ids), request.max_new_tokens
        if prompt + new > self.context:
            raise RequestError(
                f"prompt: {prompt} tokens + max_new_tokens {new} = {prompt + new} exceed the pair's context of "
                f"{self.context}; shorten the prompt or lower max_new_tokens"
            )

    def _admit(self, waiting: deque[tuple[int, Request]]) -> None:
        """Fill free slots from the queue. New prompts are read into both caches at once, or, where all rows are new,
        by the first round, which saves a forward of each model."""
        first = len(self._rows)
        new = [waiting.popleft() for _ in range(min(self.slots - first, len(waiting)))]
        if not new:
            return
        self._rows.extend(new)
        self._reserve(new)
        rows = slice(first, len(self._rows))
        requests = [request for _, request in new]
        lengths_R = torch.tensor([len(request.prompt_ids) for request in requests])
        prompts_RK = torch.zeros(len(new), int(lengths_R.max()), dtype=torch.long)
        for i, request in enumerate(requests):
            prompts_RK[i, : lengths_R[i]] = torch.tensor(request.prompt_ids)
            generator = torch.Generator().manual_seed(request.seed)
            self._noise_ST3[first + i] = 0
            self._noise_ST3[first + i, : request.max_new_tokens] = torch.rand(
                request.max_new_tokens, 3, generator=generator, dtype=torch.float64
            )
        ends_R1 = (lengths_R - 1)[:, None]
        values = {
            "total": lengths_R,  # tokens of prompt and output
            "read": lengths_R - 1,  # of these, in the drafter's cache; the target's lacks exactly the last
            "length": torch.zeros_like(lengths_R),  # tokens of output
            "rounds": torch.zeros_like(lengths_R),
            "budget": torch.tensor([request.max_new_tokens for request in requests]),
            "last": prompts_RK.gather(1, ends_R1)[:, 0],
            "previous": prompts_RK.gather(1, (ends_R1 - 1).clamp_min(0))[:, 0],
        }
        for name, value_R in values.items():
            self._state[name][rows] = value_R
        self._sampling = self._active_sampling()
        if first == 0 and prompts_RK.shape[1] <= PREFILL_CHUNK:
            self._unread = (prompts_RK, lengths_R)
        elif prompts_RK.shape[1] > 1:  # the last token is read in the first round, where its logits are needed
            for role in (self.drafter, self.target):
                if role is not None:
                    role.prefill(rows, prompts_RK[:, :-1])

    def _reserve(self, new: Sequence[tuple[int, Request]]) -> None:
        """Room for the new rows in the caches and in the loop's own buffers."""
        block = self.draft_length + 2  # a round may write this far past a row's end
        positions = max(len(request.prompt_ids) + request.max_new_tokens for _, request in new) + block
        for role in (self.drafter, self.target):
            if role is not None:
                role.reserve(self.slots, positions)
        outputs = max(request.max_new_tokens for _, request in new) + block
        if outputs > self._capacity:
            self._capacity = max(outputs, 2 * self._capacity)
            self._noise_ST3 = _grown(self._noise_ST3, (self.slots, self._capacity, 3))
            for name, dtype in OUTPUTS.items():
                self._out.setdefault(name, torch.zeros(0, 0, dtype=dtype))
            self._out = {
                name: _grown(old_ST, (self.slots, self._capacity, *old_ST.shape[2:]))
                for name, old_ST in self._out.items()
            }
        if not self._state:
            self._state = {name: torch.zeros(self.slots, dtype=dtype) for name, dtype in STATE.items()}

    # -- one round -----------------------------------------------------------------------------------------------

    def _round(self) -> list[tuple[int, Generation]]:
        """One block for all rows; the (ticket, Generation) of those that finished."""
        B = len(self._rows)
        state = {name: value_S[:B] for name, value_S in self._state.items()}
        limit_B = (state["budget"] - state["length"] - 1).clamp(max=self.draft_length)
        N = int(limit_B.max())
        at_BM = state["length"][:, None] + torch.arange(N + 1)
        noise_BM3 = self._noise_ST3[:B].gather(1, at_BM[..., None].expand(-1, -1, 3))
        prompts = None if self._unread is None else (*self._unread, torch.zeros_like(limit_B))
        self._unread = None
        proposal = None
        if N > 0 and self.drafter is not None:
            unread = prompts or _unread_by_drafter(state)
            drafts_BN = noise_BM3[:, :N, DRAFT]
            proposal = self.drafter.propose(DraftInput(*unread, limit_B.clamp_min(0), drafts_BN, self._sampling))
        unread = prompts or (state["last"][:, None].clone(), torch.ones_like(limit_B), state["total"] - 1)
        coins_BN, u_BM = noise_BM3[:, :N, COIN], noise_BM3[:, :, LAST]
        verdict, features_BMD = self.target.verify(VerifyInput(*unread, coins_BN, u_BM, self._sampling), proposal)
        finished_B = self._emit(state, verdict, features_BMD)
        return self._release([row for row, finished in enumerate(finished_B.tolist()) if finished])

    def _emit(self, state: dict[str, Tensor], verdict: Verdict, features_BMD: Tensor | None) -> Tensor:
        """Write a verdict to the rows' outputs and advance them; which rows are finished, [B] bool."""
        B, M = verdict.tokens_BM.shape
        column_M = torch.arange(M)
        is_eos_BM = (verdict.tokens_BM[..., None] == self._eos_E).any(-1)
        stop_BM = is_eos_BM & (column_M < verdict.emitted_B[:, None])
        stopped_B = stop_BM.any(-1)
        emitted_B = torch.where(stopped_B, stop_BM.long().argmax(-1) + 1, verdict.emitted_B)
        accepted_B = torch.minimum(emitted_B, verdict.emitted_B - 1)

        at_BM = state["length"][:, None] + column_M
        for name in ("tokens", "kind", "p", "q", "tv", "w"):
            self._out[name][:B].scatter_(1, at_BM, getattr(verdict, f"{name}_BM").to(self._out[name].dtype))
        if features_BMD is not None:
            D = features_BMD.shape[-1]
            if "features" not in self._out:
                self._out["features"] = torch.zeros(self.slots, self._capacity, D)
            self._out["features"][:B].scatter_(1, at_BM[..., None].expand(-1, -1, D), features_BMD)
        round_B1 = state["rounds"][:, None]
        self._out["accepted"][:B].scatter_(1, round_B1, accepted_B[:, None])
        self._out["drafted"][:B].scatter_(1, round_B1, verdict.drafted_B[:, None])

        last_B1 = (emitted_B - 1)[:, None]
        before_B = verdict.tokens_BM.gather(1, (last_B1 - 1).clamp_min(0))[:, 0]
        state["previous"].copy_(torch.where(emitted_B > 1, before_B, state["last"]))
        state["last"].copy_(verdict.tokens_BM.gather(1, last_B1)[:, 0])
        # The drafter has read all drafted tokens but the last; of these, the accepted ones stay.
        if M > 1:
            state["read"].copy_(state["total"] + torch.minimum(accepted_B, torch.tensor(M - 2)))
        state["total"].add_(emitted_B)
        state["length"].add_(emitted_B)
        state["rounds"].add_(1)
        return stopped_B | (state["length"] >= state["budget"])

    def _active_sampling(self) -> Sampling:
        """The sampling laws of the active rows, without what none of them uses."""
        requests = [request for _, request in self._rows]
        temperatures = [request.temperature for request in requests]
        top_ks = [request.top_k for request in requests]
        top_ps = [request.top_p for request in requests]
        return Sampling(
            temperature_B=torch.tensor(temperatures) if set(temperatures) - {0, 1} else None,
            top_k_B=torch.tensor(top_ks) if any(top_ks) else None,
            top_p_B=torch.tensor(top_ps) if min(top_ps, default=1) < 1 else None,
            greedy_B=torch.tensor(temperatures) == 0 if 0 in temperatures else None,
        )

    def _release(self, rows: list[int]) -> list[tuple[int, Generation]]:
        """Take finished rows out; the last rows move into their slots."""
        finished = [(self._rows[row][0], self._generation(row)) for row in rows]
        for row in reversed(rows):
            source = len(self._rows) - 1
            if row != source:
                length = int(self._state["total"][source])
                for role in (self.drafter, self.target):
                    if role is not None:
                        role.move(source, row, length)
                for values in (self._state, self._out):
                    for value_S in values.values():
                        value_S[row] = value_S[source]
                self._noise_ST3[row] = self._noise_ST3[source]
                self._rows[row] = self._rows[source]
            self._rows.pop()
        if rows:
            self._sampling = self._active_sampling()
        return finished

    def _generation(self, row: int) -> Generation:
        request = self._rows[row][1]
        length, rounds = int(self._state["length"][row]), int(self._state["rounds"][row])
        out = {name: value_ST[row, :length].clone() for name, value_ST in self._out.items()}
        stopped = bool((out["tokens"][-1] == self._eos_E).any())
        return Generation(
            request=request,
            tokens=out["tokens"].tolist(),
            finish_reason="stop" if stopped else "length",
            kind_T=out["kind"],
            p_T=out["p"],
            q_T=out["q"],
            tv_T=out["tv"],
            w_T=out["w"],
            accepted_R=self._out["accepted"][row, :rounds].clone(),
            drafted_R=self._out["drafted"][row, :rounds].clone(),
            features_TD=out.get("features"),
        )


OUTPUTS = {
    "tokens": torch.long,
    "kind": torch.long,
    "p": torch.float32,
    "q": torch.float32,
    "tv": torch.float32,
    "w": torch.float32,
    "accepted": torch.long,  # per round, as is the next
    "drafted": torch.long,
}
STATE = {
    "total": torch.long,
    "read": torch.long,
    "length": torch.long,
    "rounds": torch.long,
    "budget": torch.long,
    "last": torch.long,
    "previous": torch.long,
}


def _unread_by_drafter(state: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, counts and start of what the drafter has not read: the last token, and after an all-accepted block also
    the one before it, [B, 1 or 2], [B], [B]."""
    counts_B = state["total"] - state["read"]
    tokens_BK = state["last"][:, None].clone()
    if int(counts_B.max()) > 1:
        first_B1 = torch.where(counts_B == 2, state["previous"], state["last"])[:, None]
        tokens_BK = torch.cat([first_B1, tokens_BK], 1)
    return tokens_BK, counts_B, state["read"].clone()


def _grown(old: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Zeros of `shape` that begin with `old`."""
    new = torch.zeros(shape, dtype=old.dtype)
    new[: old.shape[0], : old.shape[1]] = old
    return new


def build_engine(pair: Pair, decode: DecodeSettings, head: Weigh | None = None, collect: bool = False) -> Engine:
    """Both models in this process. `head` gives w for DIVERSED; `collect` keeps the features of each position."""
    rule = Rule.of(decode)
    if rule.method is Method.DIVERSED and head is None:
        raise ConfigError("decode.method = 'diversed': needs a verifier; give --verifier.checkpoint or train one")
    weigh = head if rule.weight is None else None
    drafter = None
    if rule.method is not Method.AUTOREGRESSIVE:
        hidden = collect or weigh is not None
        drafter = LocalDrafter(pair.draft, pair.vocab_size, pair.eos_ids, hidden)
    target = LocalTarget(pair.target, pair.vocab_size, rule, weigh, collect)
    return Engine(drafter, target, decode.draft_length, decode.batch_size, pair.eos_ids, pair.context)
