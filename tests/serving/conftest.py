"""The service over a scripted engine."""

import pytest

from diversed.serving.service import CompletionService
from tests.serving.scripted import ScriptedEngine, scripted_service


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def service(engine: ScriptedEngine) -> CompletionService:
    return scripted_service(engine)
