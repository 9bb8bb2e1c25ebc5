"""Every case's test is seen to fail when its fault is planted into a copy of the code.

A test that cannot fail proves nothing. One process for each: `pytest -m slow tests/test_planted_faults.py`.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = "platform/diversed"
DECODING = f"{CODE}/decoding"

FAULTS = [  # case, file, the right words, the wrong ones, where its tests are
    (1, f"{DECODING}/roles.py", "laws.append(q_B1V)", "laws.append(logits_B1V.softmax(-1))", "decoding/test_engine.py"),
    (2, f"{DECODING}/roles.py", "one_hot(tokens_BN, self.vocab_size).float()", "one_hot(tokens_BN, self.vocab_size)/2",
     "decoding/test_engine.py"),
    (2, f"{CODE}/verification/rules.py", "bounded / q)", "bounded / (q / 2))",
     "verification/test_rules.py"),
    (3, f"{CODE}/verification/laws.py", "> TINY, positive_V, p_V)", "> TINY, positive_V.softmax(-1), p_V)",
     "verification/test_rules.py"),
    (4, f"{DECODING}/roles.py", "sampling.law(logits_B1V, tokens)", "logits_B1V.softmax(-1)",
     "decoding/test_features.py"),
    (5, f"{CODE}/verification/laws.py", "> TINY, positive_V", "> -1, positive_V",
     "verification/test_rules.py"),
    (6, f"{CODE}/models/pair.py", "if of_target != of_draft:", "if len(of_target) != len(of_draft):",
     "models/test_pair.py"),
    (7, f"{DECODING}/roles.py", "        if X:\n", "        if False:\n", "decoding/test_features.py"),
    (8, f"{CODE}/verification/laws.py", "torch.where(temperature_B > 0, temperature_B, 1.0)", "temperature_B",
     "decoding/test_features.py"),
    (9, f"{DECODING}/engine.py", "np.minimum(accepted_B, M - 2)", "accepted_B", "decoding/test_engine.py"),
    (10, f"{DECODING}/cache.py", "(2 * zeros) >= zeros + ", "(2 * zeros) > zeros + ", "decoding/test_engine.py"),
    (11, f"{DECODING}/engine.py", "is_out_B = total_B >= self._draft_context", "is_out_B = total_B < 0",
     "decoding/test_features.py"),
    (12, f"{DECODING}/engine.py", "if not self._eos_ids.isdisjoint(", "if set().issuperset(",
     "decoding/test_engine.py"),
    (13, f"{CODE}/models/text.py", "        for consumed, token in enumerate(ids, start=1):",
     "        self._ids = []\n        for consumed, token in enumerate(ids, start=1):", "decoding/test_features.py"),
    (14, f"{DECODING}/engine.py", "self._end_S[:B] - total_B - 1", "self._end_S[:B] - total_B",
     "decoding/test_engine.py"),
    (15, f"{DECODING}/engine.py", 'finish_reason="stop" if stopped', 'finish_reason="stop" if total < self._end_S[row]',
     "decoding/test_engine.py"),
    (16, f"{CODE}/models/text.py", ".rstrip(REPLACEMENT)", "", "models/test_text.py"),
    (17, f"{DECODING}/records.py", "manual_seed(self.seed)", "manual_seed(self.seed + id(self) % 7919)",
     "decoding/test_engine.py"),
    (18, f"{DECODING}/cache.py", "starts.count(first) == len(starts)", "True", "decoding/test_engine.py"),
    (19, f"{DECODING}/engine.py", "self._round_S[i] = 0", "self._round_S[i] += 0", "decoding/test_features.py"),
    (20, f"{DECODING}/records.py", "return self.p_T.log()", "return (self.p_T / self.q_T).clamp(max=1).log()",
     "decoding/test_features.py"),
    (21, f"{DECODING}/engine.py", "at_round] = accepted_B[", "at_round] = emitted_B[", "decoding/test_engine.py"),
    (22, f"{CODE}/evaluation/gate.py", "result.empty or result.looped", "False", "tuning/test_objective.py"),
    (23, f"{CODE}/evaluation/tables.py", "max(predictions) < 1", "False", "evaluation/test_report.py"),
    (24, f"{CODE}/serving/champion.py", "head=champion.head)", "head=lambda features: features[..., 0] * 0 + 0.9)",
     "serving/test_endpoint.py"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("case", "file", "right", "wrong", "tests"),
    FAULTS,
    ids=[f"case_{case:02}-{Path(file).stem}" for case, file, *_ in FAULTS],
)
def test_the_test_of_a_case_fails_with_its_fault(
    tmp_path: Path, case: int, file: str, right: str, wrong: str, tests: str
) -> None:
    for folder in ("platform", "jobs", "tune_spaces", "serve_apps"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "docs"))
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    source = (tmp_path / file).read_text()
    assert source.count(right) == 1, f"{right!r} stands {source.count(right)} times in {file}"
    (tmp_path / file).write_text(source.replace(right, wrong))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider"]
    selected = [f"tests/{tests}", "-k", f"test_case_{case:02}"]
    ran = subprocess.run([*command, *selected], cwd=tmp_path, capture_output=True, text=True, timeout=380, check=False)
    assert ran.returncode == 1, ran.stdout + ran.stderr  # 1: a test failed; 5 would be: there is none
    assert re.search(r"FAILED|ERROR", ran.stdout)


def test_every_case_has_a_test_and_a_fault() -> None:
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    numbers = {int(number) for text in texts for number in re.findall(r"def test_case_(\d\d)_", text)}
    assert numbers == {case for case, *_ in FAULTS} == set(range(1, 25))


@pytest.mark.parametrize(("file", "right"), [fault[1:3] for fault in FAULTS])
def test_faults_can_still_be_planted(file: str, right: str) -> None:
    """The right words stand there once; code that moved would leave a fault unplanted until the slow tests are run."""
    assert (ROOT / file).read_text().count(right) == 1
