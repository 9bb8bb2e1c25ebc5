"""The arithmetic pair and a few requests of unequal length."""

import pytest
import torch

from diversed.models import Pair, load_pair
from diversed.settings import PairSettings, Settings
from diversed.tasks import Split, get_task
from diversed.verifier import Head


@pytest.fixture(scope="session")
def pair() -> Pair:
    return load_pair(PairSettings())


@pytest.fixture(scope="session")
def prompts(pair: Pair) -> list[list[int]]:
    """Eight prompts, cut at different places."""
    examples = get_task("arithmetic").examples(Settings().task, Split.TEST, 0)[:8]
    return [pair.encode(example.prompt)[: 3 + 2 * index] for index, example in enumerate(examples)]


@pytest.fixture
def head(pair: Pair) -> Head:
    """A head whose weight varies with the features."""
    head = Head(pair.draft_dim, pair.target_dim)
    with torch.no_grad():
        head.weight_D.normal_(0, 0.3, generator=torch.Generator().manual_seed(1))
    return head
