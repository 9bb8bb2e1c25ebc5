"""The one speculative loop, for every method, batch size and placement.

A round: the drafter reads what it has not read yet and drafts up to N tokens per row; the target scores them in one
forward and judges; each row emits its accepted tokens and one more. Rows are slots 0..B-1 of both caches: the last row
moves into a finished row's slot (one copy per finished request) and new requests join at the end, so the active rows
stay a prefix and every forward is a view of the caches. Long prompts are read behind the active rows, a piece per
round, so that they hold up nobody.

Noise is indexed by (request, output position, purpose): draft draw, acceptance coin, replacement or bonus draw. Numbers
of positions after a rejection were not looked at by anything emitted, so reading them again at the redraft is exact,
and a row's tokens depend neither on its neighbours nor on where the roles run, nor on being started twice.

The loop's own books are NumPy arrays, whose small operations cost a fraction of a tensor's; a list's maximum costs a
fraction of theirs.

Shapes: S slots, B active rows, C positions of a row, T output positions, N drafted, M = N + 1, K unread tokens.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from diversed.decoding.records import Generation, Request
from diversed.decoding.roles import (
    Array,
    Drafter,
    DraftInput,
    History,
    LocalDrafter,
    LocalTarget,
    PromptLookup,
    Sampling,
    Target,
    VerifyInput,
    Weigh,
    grown,
)
from diversed.errors import ConfigError, RequestError
from diversed.models import Pair, StopFinder
from diversed.settings import DecodeSettings, DrafterKind, Method
from diversed.verification import Kind, Rule, Verdict, rule_of

__all__ = ["Engine", "build_engine", "rule_and_weigh"]

logger = logging.getLogger(__name__)

PREFILL_TOKENS = 1024  # of all rows together in a forward that reads prompts: bounds its memory
FIRST_LOGITS = 2**24  # of a first round that also reads prompts; more would cost more than the forward it saves

Answer = Generation | RequestError
Flags = NDArray[np.bool_]


class Engine:
    """Continuous batching over a drafter and a target, by `submit` and `step`, `generate`, or `stream`, for one caller.

    A row costs its neighbours nothing but its share of the forwards. A request for which memory does not suffice fails
    alone: rows are put back, youngest first, until the others fit.
    """

    def __init__(self, drafter: Drafter | None, target: Target, decode: DecodeSettings, pair: Pair) -> None:
        """`drafter` None is autoregressive decoding. Of the pair: vocabulary, ends, tokenizer and contexts."""
        self.drafter, self.target = drafter, target
        self.draft_length = decode.draft_length if drafter is not None else 0
        self.slots, self.context = decode.batch_size, pair.context
        drafts_by_model = drafter is not None and decode.drafter is DrafterKind.MODEL
        self._draft_context = pair.draft_context if drafts_by_model else pair.context
        self._vocab_size = pair.vocab_size
        self._tokenizer: PreTrainedTokenizerBase | None = pair.tokenizer
        self._eos_ids = frozenset(pair.eos_ids)
        self._is_end_V = np.zeros(pair.vocab_size, dtype=bool)
        self._is_end_V[[token for token in pair.eos_ids if token < pair.vocab_size]] = True
        self._waiting: deque[tuple[int, Request]] = deque()
        self._tickets = 0
        self._reserving = 0  # requests for which slots are being reserved
        self._room = self.slots  # rows that memory is known to allow
        self._rows: list[tuple[int, Request]] = []  # (ticket, request) of slots 0..B-1
        self._joining: list[tuple[int, Request] | None] = []  # of the slots from `_joining_at`; None: cancelled
        self._joining_at = 0
        self._joining_read = 0  # tokens of these prompts that both caches hold
        self._finders: dict[int, StopFinder] = {}  # by ticket
        self._sampling = Sampling()  # of the active rows
        self._has_history = False
        self._audited = False
        self._warned = False
        # Per slot; positions count prompt and output.
        self._tokens_SC = np.zeros((0, 0), dtype=np.int64)
        self._noise_3ST = np.zeros((3, 0, 0))  # draft draws, acceptance coins, draws of the last token
        self._numbers_XST = np.zeros((4, 0, 0), dtype=np.float32)  # p, q, TV, w, and an audit's numbers
        self._rounds_2ST = np.zeros((2, 0, 0), dtype=np.int64)  # accepted and drafted of each round
        self._features_STD: Tensor | None = None
        self._prompt_S = np.zeros(self.slots, dtype=np.int64)  # tokens of the prompt
        self._end_S = np.zeros(self.slots, dtype=np.int64)  # of the prompt and all that may follow it
        self._total_S = np.zeros(self.slots, dtype=np.int64)  # of prompt and output
        self._draft_read_S = np.zeros(self.slots, dtype=np.int64)  # of these, in the drafter's cache
        self._target_read_S = np.zeros(self.slots, dtype=np.int64)
        self._round_S = np.zeros(self.slots, dtype=np.int64)
        self._one_S = np.ones(self.slots, dtype=np.int64)
        self._row_S1 = np.arange(self.slots)[:, None]

    # -- what callers use ----------------------------------------------------------------------------------------

    def generate(
        self,
        requests: Sequence[Request],
        progress: Callable[[int], None] | None = None,
    ) -> list[Generation]:
        """Continue all `requests`; answers come in their order. `progress` gets the number finished so far.

        RequestError if one is empty or too long for the context (then nothing is run), or when one did not fit into
        memory (after the others are finished; use `submit` and `step` to have their answers).
        """
        for request in requests:
            self._check(request)
        answers: dict[int, Answer] = {}
        try:
            tickets = [self.submit(request) for request in requests]
            while self.busy:
                answers |= self.step()
                if progress is not None:
                    progress(len(answers))
        finally:
            self.clear()  # after an error too: the next call starts from empty slots
        generations = []
        for ticket in tickets:
            answer = answers[ticket]
            if isinstance(answer, RequestError):
                raise answer
            generations.append(answer)
        return generations

    def stream(self, request: Request) -> Iterator[tuple[list[int], Generation | None]]:
        """New tokens of each round; the last item carries the whole Generation. Closing the iterator frees the row."""
        ticket = self.submit(request)
        seen = 0
        try:
            while self.busy:
                finished = self.step()
                generation = None
                if finished:
                    answer = finished[0][1]
                    if isinstance(answer, RequestError):
                        raise answer
                    generation = answer
                tokens = self.tokens_of(ticket) if generation is None else generation.tokens
                fresh, seen = tokens[seen:], len(tokens)
                yield fresh, generation
        finally:
            self.clear()

    def submit(self, request: Request) -> int:
        """Put a request into the queue; its ticket. RequestError if it cannot be decoded."""
        self._check(request)
        self._tickets += 1
        self._waiting.append((self._tickets, request))
        return self._tickets

    @property
    def busy(self) -> bool:
        """Whether there is something to `step` for."""
        return bool(self._waiting or self._joining or self._rows)

    def step(self) -> list[tuple[int, Answer]]:
        """One round for all rows; tickets and answers of those that ended.

        After any other exception the engine is as empty as after `clear`.
        """
        try:
            self._admit()
            return self._round() if self._rows else []
        except Exception as error:
            if not _is_out_of_memory(error):
                self.clear()
                raise
            return self._make_room()

    def tokens_of(self, ticket: int) -> list[int]:
        """Output tokens of a running request so far."""
        for row, (other, _) in enumerate(self._rows):
            if other == ticket:
                tokens: list[int] = self._tokens_SC[row, self._prompt_S[row] : self._total_S[row]].tolist()
                return tokens
        return []

    def cancel(self, ticket: int) -> None:
        """Forget a request; its row is free for the next `step`. One that ended already is no error."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] != ticket)
        self._joining = [None if entry is not None and entry[0] == ticket else entry for entry in self._joining]
        if not any(self._joining):
            self._joining = []
        for row, (other, _) in enumerate(self._rows):
            if other == ticket:
                self._remove(row)
                self._resample()
                return

    def clear(self) -> None:
        """Forget all requests."""
        self._waiting.clear()
        self._rows.clear()
        self._joining.clear()
        self._finders.clear()
        self._reserving = 0
        self._room = self.slots

    def close(self) -> None:
        """Free what the roles hold outside this process."""
        for role in self._roles:
            role.close()

    @property
    def _roles(self) -> list[Drafter | Target]:
        return [self.target] if self.drafter is None else [self.drafter, self.target]

    def _check(self, request: Request) -> None:
        request.check(self._vocab_size)
        prompt, new = len(request.prompt_ids), request.max_new_tokens
        if prompt + new > self.context:
            raise RequestError(
                f"prompt: {prompt} tokens + max_new_tokens {new} = {prompt + new} exceed the target's context of "
                f"{self.context}; shorten the prompt or lower max_new_tokens"
            )
        if request.stop and self._tokenizer is None:
            raise RequestError("stop: this pair has no tokenizer to find texts with; leave it out")

    # -- rows ----------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Fill free slots from the queue and read a piece of their prompts; whose prompt is read joins the rows.

        Where nobody is kept waiting the first round itself reads the prompts, which saves a forward of each model.
        """
        if not self._joining and self._waiting:
            self._begin()
        if not self._joining:
            return
        lengths_R = self._prompt_S[self._joining_at :][: len(self._joining)]
        longest = int(lengths_R.max())
        first_logits = len(lengths_R) * (longest - int(lengths_R.min()) + self.draft_length + 1) * self._vocab_size
        fits = longest * len(lengths_R) <= PREFILL_TOKENS and first_logits <= FIRST_LOGITS
        if self._joining_read == 0 and not self._rows and fits:
            self._activate(0)
            return
        slots = slice(self._joining_at, self._joining_at + len(lengths_R))
        stop = min(self._joining_read + max(PREFILL_TOKENS // len(lengths_R), 1), longest - 1)
        if stop > self._joining_read:  # the last token is read in the first round, where its logits are needed
            self._prefill(self.target, slots, stop)
            if self.drafter is not None:
                self._prefill(self.drafter, slots, min(stop, self._draft_context))
            self._joining_read = stop
        if stop == longest - 1:
            self._activate(1)

    @torch.inference_mode()
    def _prefill(self, role: Drafter | Target, slots: slice, stop: int) -> None:
        if stop > self._joining_read:
            role.prefill(slots, self._tokens_SC[slots, self._joining_read : stop], self._joining_read)

    def _begin(self) -> None:
        """Reserve slots for waiting requests, and write them down there."""
        first = len(self._rows)
        count = min(self._room - first, len(self._waiting))
        if count < 1:
            return
        new = [self._waiting[i] for i in range(count)]
        block = self.draft_length + 2  # a round may write this far past a row's end
        capacity = max(len(request.prompt_ids) + request.max_new_tokens for _, request in new) + block
        self._reserving = count
        for role in self._roles:
            role.reserve(first + count, capacity)
        self._reserving = 0
        self._reserve_books(first + count, capacity, max(request.max_new_tokens for _, request in new) + block)
        for i, (ticket, request) in enumerate(new, start=first):
            prompt, limit = len(request.prompt_ids), request.max_new_tokens
            self._tokens_SC[i, :prompt] = request.prompt_ids
            self._tokens_SC[i, prompt:] = 0
            self._noise_3ST[:, i] = 0
            self._noise_3ST[:, i, :limit] = request.noise_T3.T.numpy()
            self._prompt_S[i] = self._total_S[i] = prompt
            self._end_S[i] = prompt + limit
            self._round_S[i] = 0
            if request.stop and self._tokenizer is not None:
                self._finders[ticket] = StopFinder(self._tokenizer, request.stop)
        for _ in new:
            self._waiting.popleft()
        self._joining, self._joining_at, self._joining_read = list(new), first, 0

    def _activate(self, unread: int) -> None:
        """The joining requests become rows. The caches hold all but `unread` tokens of each prompt, or none if that is
        0."""
        for i, entry in enumerate(self._joining):
            source, row = self._joining_at + i, len(self._rows)
            if entry is None:
                continue
            read = 0 if unread == 0 else int(self._prompt_S[source]) - unread
            if source != row:
                self._copy(source, row, read)
            self._draft_read_S[row] = self._target_read_S[row] = read
            self._rows.append(entry)
        self._joining = []
        self._resample()

    def _reserve_books(self, slots: int, capacity: int, outputs: int) -> None:
        self._tokens_SC = grown(self._tokens_SC, slots, capacity)
        self._noise_3ST = grown(self._noise_3ST, slots, outputs)
        self._numbers_XST = grown(self._numbers_XST, slots, outputs)
        self._rounds_2ST = grown(self._rounds_2ST, slots, outputs)

    def _copy(self, source: int, row: int, length: int) -> None:
        """Carry a slot's content, of which the caches hold `length` tokens, to another."""
        for role in self._roles:
            role.move(source, row, length)
        for values_S in (
            self._tokens_SC,
            self._prompt_S,
            self._end_S,
            self._total_S,
            self._draft_read_S,
            self._target_read_S,
            self._round_S,
        ):
            values_S[row] = values_S[source]
        for values_XS in (self._noise_3ST, self._numbers_XST, self._rounds_2ST):
            values_XS[:, row] = values_XS[:, source]
        if self._features_STD is not None and len(self._features_STD) > source:
            self._features_STD[row] = self._features_STD[source]

    def _remove(self, row: int) -> None:
        """Take a row out; the last row moves into its slot."""
        source = len(self._rows) - 1
        self._finders.pop(self._rows[row][0], None)
        if row != source:
            self._copy(source, row, int(self._target_read_S[source]))
            self._rows[row] = self._rows[source]
        self._rows.pop()

    def _make_room(self) -> list[tuple[int, Answer]]:
        """Memory ran out: the youngest requests wait until others are done; a request that was alone has failed. Noise
        is a function of the position, so the tokens of one that is started again will be the same."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if self._reserving:
            wanted, self._reserving = self._reserving, 0
            if self._rows or wanted > 1:
                self._room = len(self._rows) or wanted - 1
                return []
            return [self._failed(self._waiting.popleft()[0])]
        joining = [entry for entry in self._joining if entry is not None]
        self._joining = []
        running = len(self._rows) + len(joining)
        if running == 1:
            ((ticket, _),) = joining or self._rows
            self._rows = []
            return [self._failed(ticket)]
        self._room = running - 1
        if not joining:
            joining = [self._rows[-1]]
            self._remove(len(self._rows) - 1)
            self._resample()
        self._waiting.extendleft(reversed(joining))
        return []

    def _failed(self, ticket: int) -> tuple[int, Answer]:
        self._finders.pop(ticket, None)
        if not self._rows:
            self._room = self.slots
        return ticket, RequestError("out of memory, though alone; shorten the prompt or lower max_new_tokens")

    # -- one round -----------------------------------------------------------------------------------------------

    def _round(self) -> list[tuple[int, Answer]]:
        """One block for all rows; tickets and Generations of those that finished."""
        B = len(self._rows)
        total_B = self._total_S[:B]
        limit_B = np.minimum(self._end_S[:B] - total_B - 1, self.draft_length)
        read_B = self._draft_read_S[:B]
        if max(total_B.tolist()) + self.draft_length > self._draft_context:  # what is beyond it gets no more drafts
            is_out_B = total_B >= self._draft_context
            limit_B = np.where(is_out_B, 0, np.minimum(limit_B, self._draft_context - total_B))
            # Such a row feeds its last token to a place that is never looked at.
            read_B = np.where(is_out_B, 0, read_B)
            count_B = np.where(is_out_B, 1, total_B - read_B)
            if is_out_B.any():
                self._warn_of_context()
        else:
            count_B = total_B - read_B
        N = max(limit_B.tolist())
        at_B = total_B - self._prompt_S[:B]
        u_BM, coins_BM, last_BM = torch.from_numpy(self._noise_3ST[:, *self._window(at_B, N + 1)].copy()).unbind()
        sampling = self._sampling_now()
        with torch.inference_mode():
            proposal = None
            if N > 0 and self.drafter is not None:
                unread_BK = self._unread(total_B - count_B, count_B)
                proposal = self.drafter.propose(DraftInput(unread_BK, count_B, read_B, limit_B, u_BM, sampling))
            read_B = self._target_read_S[:B]
            count_B = total_B - read_B
            unread_BK = self._unread(read_B, count_B)
            block = VerifyInput(unread_BK, count_B, read_B, coins_BM, last_BM, sampling, self._audited)
            verdict, features_BMD = self.target.verify(block, proposal)
        ended_B = self._emit(verdict, features_BMD, at_B)
        ended = [row for row, is_ended in enumerate(ended_B.tolist()) if is_ended]
        if not ended:
            return []
        answers: list[tuple[int, Answer]] = [(self._rows[row][0], self._generation(row)) for row in ended]
        for row in reversed(ended):
            self._remove(row)
        if not self._rows and not self._joining:
            self._room = self.slots
        self._resample()
        return answers

    def _unread(self, first_B: Array, count_B: Array) -> Array:
        """`count_B` tokens of each row from position `first_B` on, right padded, [B, K]."""
        K: int = max(count_B.tolist())
        if K == 1 or len(first_B) == 1:
            read_BK: Array = self._tokens_SC[self._window(first_B, K)].copy()
            return read_BK
        position_BK = first_B[:, None] + np.minimum(np.arange(K), count_B[:, None] - 1)
        tokens_BK: Array = self._tokens_SC[self._row_S1[: len(first_B)], position_BK]
        return tokens_BK

    def _window(self, first_B: Array, width: int) -> Any:
        """Index of `width` columns of the active rows' books, from each row's `first_B` on: one row's as a slice, which
        is much faster."""
        if len(first_B) == 1:
            first = first_B.item()
            return slice(1), slice(first, first + width)
        return self._row_S1[: len(first_B)], first_B[:, None] + np.arange(width)

    def _emit(self, verdict: Verdict, features_BMD: Tensor | None, at_B: Array) -> Flags:
        """Write a verdict to the rows' books, of the output from `at_B` on, and advance them; which rows have ended,
        [B]."""
        tokens_BM = verdict.tokens_BM.numpy()
        accepted_B, drafted_B = verdict.accepted_B.numpy(), verdict.drafted_B.numpy()
        B, M = tokens_BM.shape
        total_B = self._total_S[:B]
        at = self._window(at_B, M)
        one_B = self._one_S[:B]  # adding 1 itself costs thrice as much
        emitted_B = accepted_B + one_B
        stopped_B: Flags | None = None
        if not self._eos_ids.isdisjoint(tokens_BM.ravel().tolist()):
            is_end_BM = self._is_end_V[tokens_BM]
            is_end_BM &= np.arange(M) < emitted_B[:, None]
            stopped_B = is_end_BM.any(1)
            emitted_B = np.where(stopped_B, is_end_BM.argmax(1) + 1, emitted_B)
            accepted_B = np.minimum(accepted_B, emitted_B)
        if self._finders:
            stopped_B = np.zeros(B, dtype=bool) if stopped_B is None else stopped_B
            self._find_stops(tokens_BM, emitted_B, stopped_B)
            accepted_B = np.minimum(accepted_B, emitted_B)

        self._tokens_SC[self._window(total_B, M)] = tokens_BM
        numbers_XBM = verdict.numbers_BMX.numpy().transpose(2, 0, 1)
        X = len(numbers_XBM)
        if len(self._numbers_XST) < X:
            self._numbers_XST = np.pad(self._numbers_XST, ((0, X - len(self._numbers_XST)), (0, 0), (0, 0)))
        self._numbers_XST[:X, *at] = numbers_XBM
        if features_BMD is not None:
            self._keep_features(features_BMD, at)
        round_B = self._round_S[:B]
        at_round = self._window(round_B, 1)
        self._rounds_2ST[0][at_round] = accepted_B[:, None]
        self._rounds_2ST[1][at_round] = drafted_B[:, None]
        round_B += one_B
        # The drafter has read all drafted tokens but the last; of these, the accepted ones stay.
        if M > 1:
            self._draft_read_S[:B] = total_B + np.minimum(accepted_B, M - 2)
        total_B += emitted_B
        self._target_read_S[:B] = total_B - one_B
        ended_B: Flags = total_B >= self._end_S[:B]
        return ended_B if stopped_B is None else ended_B | stopped_B

    def _find_stops(self, tokens_BM: Array, emitted_B: Array, stopped_B: Flags) -> None:
        """End rows at the token that completes one of their stop texts, in place."""
        for row, (ticket, _) in enumerate(self._rows):
            finder = self._finders.get(ticket)
            if finder is not None:
                consumed = finder.push(tokens_BM[row, : emitted_B[row]].tolist())
                if consumed is not None:
                    emitted_B[row], stopped_B[row] = consumed, True

    def _keep_features(self, features_BMD: Tensor, at: Any) -> None:
        D = features_BMD.shape[-1]
        slots, outputs = self._numbers_XST.shape[1:]
        kept_STD = self._features_STD
        if kept_STD is None or kept_STD.shape[:2] != (slots, outputs):
            new_STD = torch.zeros(slots, outputs, D)
            if kept_STD is not None:
                new_STD[: kept_STD.shape[0], : kept_STD.shape[1]] = kept_STD
            self._features_STD = kept_STD = new_STD
        kept_STD.numpy()[at] = features_BMD.numpy()

    def _resample(self) -> None:
        """The sampling laws of the active rows, without what none of them uses."""
        requests = [request for _, request in self._rows]

        def column(name: str, neutral: float) -> Tensor | None:
            values = [getattr(request, name) for request in requests]
            return torch.tensor(values) if any(value != neutral for value in values) else None

        temperatures = [request.temperature for request in requests]
        width = max((len(request.logit_bias) for request in requests), default=0)
        padded = [(*request.logit_bias, *[(0, 0.0)] * (width - len(request.logit_bias))) for request in requests]
        self._sampling = Sampling(
            temperature_B=torch.tensor(temperatures) if set(temperatures) - {0, 1} else None,
            top_k_B=column("top_k", 0),
            top_p_B=column("top_p", 1),
            min_p_B=column("min_p", 0),
            greedy_B=torch.tensor(temperatures) == 0 if 0 in temperatures else None,
            bias_tokens_BK=torch.tensor([[token for token, _ in row] for row in padded]) if width else None,
            bias_BK=torch.tensor([[bias for _, bias in row] for row in padded]) if width else None,
        )
        penalties = ("repetition_penalty", 1), ("presence_penalty", 0), ("frequency_penalty", 0)
        self._audited = any(request.audited for request in requests)
        self._has_history = any(column(name, neutral) is not None for name, neutral in penalties)

    def _sampling_now(self) -> Sampling:
        """With the text that penalties count, where a row has any."""
        if self._has_history:
            B = len(self._rows)
            requests = [request for _, request in self._rows]
            self._sampling.history = History(
                repetition_B=torch.tensor([float(request.repetition_penalty) for request in requests]),
                presence_B=torch.tensor([float(request.presence_penalty) for request in requests]),
                frequency_B=torch.tensor([float(request.frequency_penalty) for request in requests]),
                tokens_BL=torch.from_numpy(self._tokens_SC[:B, : self._total_S[:B].max()].copy()),
                prompt_B=torch.from_numpy(self._prompt_S[:B].copy()),
                total_B=torch.from_numpy(self._total_S[:B].copy()),
            )
        return self._sampling

    def _warn_of_context(self) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "a text is longer than the draft's context of %d tokens: it goes on without drafts", self._draft_context
            )

    def _generation(self, row: int) -> Generation:
        request = self._rows[row][1]
        prompt, total, rounds = int(self._prompt_S[row]), int(self._total_S[row]), int(self._round_S[row])
        tokens_T = self._tokens_SC[row, prompt:total]
        p_T, q_T, tv_T, w_T, *audit = torch.from_numpy(self._numbers_XST[:, row, : total - prompt].copy())
        accepted_R, drafted_R = torch.from_numpy(self._rounds_2ST[:, row, :rounds].copy())
        stopped = total < self._end_S[row] or bool(self._is_end_V[tokens_T[-1]]) or self._is_stopped(row)
        features_TD = self._features_STD
        return Generation(
            request=request,
            tokens=tokens_T.tolist(),
            finish_reason="stop" if stopped else "length",
            kind_T=_kinds(accepted_R, drafted_R, total - prompt),
            p_T=p_T,
            q_T=q_T,
            tv_T=tv_T,
            w_T=w_T,
            accepted_R=accepted_R,
            drafted_R=drafted_R,
            features_TD=None if features_TD is None else features_TD[row, : total - prompt].clone(),
            audit_TA=torch.stack(audit, -1) if request.audited else None,
        )

    def _is_stopped(self, row: int) -> bool:
        finder = self._finders.get(self._rows[row][0])
        return finder is not None and finder.found


def _kinds(accepted_R: Tensor, drafted_R: Tensor, length: int) -> Tensor:
    """Kind of each token: a round's accepted tokens, then one replacement, or a bonus if none was rejected; an output
    that ended within the accepted tokens of its last round lacks that one."""
    kind_T = torch.full((length + 1,), int(Kind.ACCEPTED))
    last_R = (accepted_R + 1).cumsum(0) - 1
    kind_T[last_R] = torch.where(accepted_R < drafted_R, int(Kind.REPLACEMENT), int(Kind.BONUS))
    return kind_T[:length]


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "not enough memory" in str(error)  # the CPU allocator's words
    )


def rule_and_weigh(decode: DecodeSettings, head: Weigh | None) -> tuple[Rule, Weigh | None]:
    """The rule of `decode` and, where its weight is learned, what gives it. ConfigError if they do not fit."""
    rule = rule_of(decode)
    if rule.method is Method.DIVERSED:
        if head is None:
            raise ConfigError("decode.method = 'diversed': needs a verifier; give --verifier.checkpoint or train one")
        if decode.drafter is not DrafterKind.MODEL:
            raise ConfigError(
                f"decode.drafter = {decode.drafter.value!r}: has no hidden states for the verifier; use 'model', or "
                "--method strict or static"
            )
    return rule, head if rule.weight is None else None


def build_engine(pair: Pair, decode: DecodeSettings, head: Weigh | None = None, collect: bool = False) -> Engine:
    """Both models in this process. `head` gives w for DIVERSED; `collect` keeps the features of each position."""
    rule, weigh = rule_and_weigh(decode, head)
    drafter: Drafter | None = None
    if rule.method.drafts:
        if decode.drafter is DrafterKind.PROMPT_LOOKUP:
            drafter = PromptLookup(pair.vocab_size, pair.eos_ids, decode.ngram)
        else:
            drafter = LocalDrafter(
                pair.draft,
                pair.vocab_size,
                pair.eos_ids,
                hidden=collect or weigh is not None,
                words_K=pair.draft_words_K,
                compiled=pair.compiled,
                untempered=rule.untempered,
            )
    target = LocalTarget(pair.target, pair.vocab_size, rule, weigh, collect, pair.compiled)
    return Engine(drafter, target, decode, pair)
