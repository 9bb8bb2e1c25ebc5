"""A task, a pair and an engine of a few lines: their laws are tables, so that a training takes no time."""

import random
from types import SimpleNamespace

import pytest
import torch

from diversed.decoding import Generation
from diversed.seeding import derive_seed
from diversed.settings import Settings
from diversed.tasks import Example, Task
from diversed.verification import Kind

EOS, VOCABULARY = 0, 12
DIMS = (2, 3)  # draft's, target's


class CountTask(Task):
    """Good is a text that holds many different letters."""

    name = "arithmetic"  # of the schema's; nothing of it is used
    metric_name = "share"

    def examples(self, settings, split, seed):
        return [Example(f"{split}-{n}", "ab" * (1 + n % 3), "") for n in range(settings.train_size)]

    def metric(self, example, completion):
        return len(set(completion)) / VOCABULARY


class TableEngine:
    """Draws tokens from v one by one, all laws and features being functions of the last token and the position."""

    def __init__(self, decode, head, collect):
        assert collect
        self.decode, self.head, self.closed, self.calls = decode, head, 0, []
        generator = torch.Generator().manual_seed(99)
        shape = (VOCABULARY, VOCABULARY)
        self.p_VV, self.q_VV = ((2 * torch.randn(shape, generator=generator)).softmax(-1) for _ in range(2))
        self.features_VD = torch.randn(VOCABULARY, sum(DIMS), generator=generator)

    def generate(self, requests, progress=None):
        self.calls.append(list(requests))
        answers = []
        for done, request in enumerate(requests, start=1):
            answers.append(self._one(request))
            if progress is not None:
                progress(done)
        return answers

    @torch.inference_mode()
    def _one(self, request):
        rng = random.Random(request.seed)
        last, rows = request.prompt_ids[-1], []
        while len(rows) < request.max_new_tokens and (not rows or last != EOS):
            bonus = len(rows) % 4 == 3
            p_V, q_V = self.p_VV[last], self.q_VV[last]
            w = 1.0 if bonus else float(self.head(self.features_VD[last]))
            features_D = self.features_VD[last]
            last = rng.choices(range(VOCABULARY), (w * p_V + (1 - w) * q_V).tolist())[0]
            kind = Kind.BONUS if bonus else rng.choice([Kind.ACCEPTED, Kind.REPLACEMENT])
            tv = float(0.5 * (p_V - q_V).abs().sum())
            rows.append((last, kind, p_V[last], 0.0 if bonus else q_V[last], 0.0 if bonus else tv, w, features_D))
        tokens, kind, p, q, tv, w, features = zip(*rows, strict=True)
        kind_T = torch.tensor(kind)
        rounds = max(1, int((kind_T != Kind.ACCEPTED).sum()))
        accepted = int((kind_T == Kind.ACCEPTED).sum())
        columns = (torch.tensor([float(value) for value in column]) for column in (p, q, tv, w))
        return Generation(
            request, list(tokens), "stop" if last == EOS else "length", kind_T, *columns,
            torch.tensor([accepted] + [0] * (rounds - 1)), torch.full((rounds,), 3), torch.stack(features),
        )  # fmt: skip

    def close(self):
        self.closed += 1


@pytest.fixture
def task():
    return CountTask()


@pytest.fixture
def pair():
    identity = {
        "name": "tables", "target": "t", "draft": "d", "target_fingerprint": "t" * 8, "draft_fingerprint": "d" * 8,
        "target_dim": DIMS[1], "draft_dim": DIMS[0], "vocab_size": VOCABULARY,
    }  # fmt: skip
    return SimpleNamespace(
        name="tables", identity=identity, device=torch.device("cpu"), draft_dim=DIMS[0], target_dim=DIMS[1], context=40,
        encode=lambda prompt, _chat_template=False: [1 + ord(letter) % 5 for letter in prompt],
        decode=lambda ids, _stop=(): "".join(chr(ord("a") + i) for i in ids if i != EOS),
    )  # fmt: skip


@pytest.fixture
def engines():
    """An engine factory that remembers what it made."""
    made = []

    def make(decode, head, collect):
        made.append(TableEngine(decode, head, collect))
        return made[-1]

    make.made = made
    return make


@pytest.fixture
def settings(tmp_path):
    return Settings(
        output=tmp_path / "out",
        seed=derive_seed(0, "tests") % 1000,
        task={"train_size": 10, "max_new_tokens": 12},
        train={"prompts_per_update": 4, "rollouts": 3, "epochs": 3, "learning_rate": 0.05, "warmup": 2, "lam": 0.3},
    )
