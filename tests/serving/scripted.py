"""A scripted engine over a byte tokenizer: everything around decoding is tested without a model."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from diversed.decoding import Generation, Request
from diversed.errors import RequestError
from diversed.serving.service import CompletionService, ModelCard
from diversed.settings import DecodeSettings
from diversed.verification import Kind

EOS = 256


class ByteTokenizer:
    """Ids 0..255 are bytes, 256 is <eos>, which has no text."""

    chat_template = None

    def decode(self, ids: Sequence[int], **_: object) -> str:
        return bytes(i for i in ids if i != EOS).decode("utf-8", errors="replace")

    def convert_ids_to_tokens(self, index: int) -> str:
        return f"b{index}"


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Until `condition` holds; rows are freed by another thread."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def byte_pair(context: int = 64) -> Any:
    """What the service needs of a Pair."""
    tokenizer = ByteTokenizer()
    return SimpleNamespace(
        tokenizer=tokenizer,
        vocab_size=257,
        context=context,
        encode=lambda text: list(text.encode()),
        encode_chat=lambda messages: list("".join(f"<{m['role']}>{m['content']}" for m in messages).encode()),
        decode=tokenizer.decode,
    )


def generation_of(request: Request, blocks: Sequence[Sequence[int]], drafted: Sequence[int], finish: str) -> Generation:
    """A record of `blocks`, the tokens of each round; all but a round's last token were accepted, with w = 0.25."""
    tokens = [token for block in blocks for token in block]
    last = [Kind.REPLACEMENT if len(block) <= n else Kind.BONUS for block, n in zip(blocks, drafted, strict=True)]
    kinds = [k for block, end in zip(blocks, last, strict=True) for k in [*[Kind.ACCEPTED] * (len(block) - 1), end]]
    kind_T = torch.tensor([int(kind) for kind in kinds])
    zeros_T = torch.zeros(len(tokens))
    return Generation(
        request=request,
        tokens=tokens,
        finish_reason=finish,
        kind_T=kind_T,
        p_T=zeros_T,
        q_T=zeros_T,
        tv_T=zeros_T,
        w_T=torch.where(kind_T == Kind.BONUS, 1.0, 0.25),
        accepted_R=torch.tensor([len(block) - 1 for block in blocks]),
        drafted_R=torch.tensor(list(drafted)),
    )


class ScriptedEngine:
    """Says `text`, three bytes a round, then <eos>, within max_new_tokens. Counts rows that are open and were freed.

    With `gate` set, every round waits for it; `fail_at` makes that round raise.
    """

    def __init__(self, text: str = "héllo, wörld €5", fail_at: int | None = None, refuse: bool = False) -> None:
        self.text, self.fail_at, self.refuse = text, fail_at, refuse
        self.gate: threading.Event | None = None
        self.round_started = threading.Event()
        self.open = 0
        self.freed = 0
        self.most_open = 0
        self.requests: list[Request] = []

    def stream(self, request: Request) -> Iterator[tuple[list[int], Generation | None]]:
        if self.refuse:
            raise RequestError("prompt: refused by the engine")
        self.requests.append(request)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            tokens = [*self.text.encode(), EOS][: request.max_new_tokens]
            blocks = [tokens[i : i + 3] for i in range(0, len(tokens), 3)]
            drafted = [min(4, request.max_new_tokens - 3 * i - 1) for i in range(len(blocks))]
            for number, block in enumerate(blocks):
                self.round_started.set()
                if self.gate is not None:
                    assert self.gate.wait(20)
                if number == self.fail_at:
                    raise ValueError("a secret of the implementation")
                finish = "stop" if tokens[-1] == EOS else "length"
                last = number == len(blocks) - 1
                yield block, generation_of(request, blocks, drafted, finish) if last else None
        finally:
            self.open -= 1
            self.freed += 1

    def close(self) -> None: ...


def scripted_service(engine: ScriptedEngine, context: int = 64, max_waiting: int = 8) -> CompletionService:
    card = ModelCard(
        id="diversed-bytes-script",
        version="diversed-bytes-script-v3",
        task="script",
        target="bytes-target",
        draft="bytes-draft",
        decode=DecodeSettings(draft_length=4, temperature=0.5, top_k=7, top_p=0.9, batch_size=1),
        context=context,
    )
    return CompletionService(byte_pair(context), engine, card, max_new_tokens=40, max_waiting=max_waiting)
