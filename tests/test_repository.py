"""The repository itself: layout, floors of imports, pins, documents that agree with the code."""

import importlib
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import diversed
from diversed.settings import load_settings

REPOSITORY = Path(__file__).resolve().parent.parent
DOCUMENTS = [REPOSITORY / "README.md", *sorted((REPOSITORY / "platform/docs").rglob("*.md"))]
PYPROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter in the checkout, as a user starts it."""
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": "platform:."},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = [REPOSITORY / name for name in listed.stdout.split("\0") if name]
    return [file for file in files if file.is_file()]


def pins() -> dict[str, str]:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def cluster() -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((REPOSITORY / "cluster.yaml").read_text())
    return config


def commands(text: str) -> list[list[str]]:
    """Command lines of a document's fenced shell blocks, continuations joined, comments gone."""
    blocks = re.findall(r"^```(?:bash|console|sh)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


class TestLayout:
    def test_the_folder_named_platform_is_no_package(self) -> None:
        """With an `__init__.py` it would hide the standard library's `platform`: Ray, torch and pytest break."""
        assert not (REPOSITORY / "platform/__init__.py").exists()
        done = python("import platform; print(platform.system(), platform.__file__)")
        assert done.returncode == 0, done.stderr
        assert REPOSITORY not in Path(done.stdout.split()[1]).parents

    def test_import_floors(self) -> None:
        done = subprocess.run(
            [Path(sys.executable).parent / "lint-imports", "--no-cache"],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": "platform:."},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def test_the_engine_imports_without_cluster_and_tracking_packages(self) -> None:
        code = """if True:
            import sys
            for name in ("ray", "mlflow", "datasets", "fastapi", "optuna", "openai"):
                sys.modules[name] = None
            import diversed.decoding, diversed.models, diversed.tasks, diversed.verification, diversed.verifier
        """
        done = python(code)
        assert done.returncode == 0, done.stderr

    def test_public_names_exist(self) -> None:
        problems = []
        for module in modules(diversed):
            names = getattr(module, "__all__", None)
            if names is None:
                problems.append(f"{module.__name__} has no __all__")
                continue
            problems += [f"{module.__name__}.{name}" for name in names if not hasattr(module, name)]
            problems += [f"{module.__name__}.__all__ repeats a name"] * (len(set(names)) != len(names))
        assert problems == []

    def test_lint_is_part_of_test(self) -> None:
        makefile = (REPOSITORY / "Makefile").read_text()
        style, types, test = (makefile.split(f"\n{name}:")[1].split("\n\n")[0] for name in ("style", "types", "test"))
        assert re.search(r"^lint: style types\b", makefile, flags=re.MULTILINE)
        assert test.startswith(" style ")
        assert "$(MAKE) --no-print-directory types" in test
        assert all(tool in style for tool in ("ruff check", "ruff format --check"))
        assert all(tool in types for tool in ("mypy", "lint-imports"))
        assert "make test" in (REPOSITORY / ".ci/run").read_text()
        assert os.access(REPOSITORY / ".ci/run", os.X_OK)
        assert PYPROJECT["tool"]["mypy"]["strict"] is True

    def test_no_path_of_one_machine_is_tracked(self) -> None:
        pattern = re.compile(r"(^|[^A-Za-z0-9_.])/(" + "|".join(["wo" + "rk", "fa" + "rm", "ro" + "ot"]) + ")/")
        found = []
        for file in tracked():
            try:
                lines = file.read_text().splitlines()
            except UnicodeDecodeError:
                continue
            found += [f"{file.name}:{number}" for number, line in enumerate(lines, 1) if pattern.search(line)]
        assert found == []

    def test_the_embedded_pairs_are_small(self) -> None:
        weights = [file for file in tracked() if file.suffix == ".safetensors"]
        assert weights
        assert sum(file.stat().st_size for file in weights) <= 5_000_000


def modules(package: ModuleType) -> list[ModuleType]:
    names = [found.name for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    return [package, *(importlib.import_module(name) for name in names)]


class TestPins:
    def test_constraints_are_exact_and_torch_is_first(self) -> None:
        lines = [line for line in (REPOSITORY / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
        assert lines[0] == "torch==2.13.0"
        assert all(re.fullmatch(r"[a-z0-9._-]+==[0-9][0-9a-z.]*", line) for line in lines), "name==version, no suffix"
        names = [line.split("==")[0] for line in lines[1:]]
        assert names == sorted(names)

    def test_constraints_satisfy_every_requirement(self) -> None:
        project = PYPROJECT["project"]
        wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
        for text in wanted:
            requirement = Requirement(text)
            assert requirement.name.lower() in pins(), f"{text} is not pinned"
            assert requirement.specifier.contains(pins()[requirement.name.lower()]), text

    def test_ray_is_the_same_everywhere(self) -> None:
        ray = pins()["ray"]
        assert f"ray[default,tune,serve]=={ray}" in PYPROJECT["project"]["dependencies"]
        image = cluster()["docker"]["image"]
        assert re.fullmatch(rf"rayproject/ray:{re.escape(ray)}-py3\d+-gpu", image)
        python_of_image = re.sub(r".*-py3(\d+)-gpu", r"3.\1", image)
        assert Version(python_of_image) in Requirement(f"p{PYPROJECT['project']['requires-python']}").specifier

    def test_one_version(self) -> None:
        version = PYPROJECT["project"]["version"]
        citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
        assert version == diversed.__version__ == citation["version"]


class TestCluster:
    def test_launcher_file_is_valid_for_this_ray(self) -> None:
        import json

        import ray
        from ray.autoscaler._private.util import prepare_config, validate_config

        schema = json.loads((Path(ray.__file__).parent / "autoscaler/ray-schema.json").read_text())
        jsonschema.validate(cluster(), schema)
        validate_config(prepare_config(cluster()))

    def test_a_misspelt_key_is_caught(self) -> None:
        """The schema would be no check if it took anything."""
        import json

        import ray

        schema = json.loads((Path(ray.__file__).parent / "autoscaler/ray-schema.json").read_text())
        with pytest.raises(jsonschema.ValidationError, match="max_worker"):
            jsonschema.validate(cluster() | {"max_worker": 1}, schema)

    def test_there_is_a_node_type_for_each_role(self) -> None:
        types = cluster()["available_node_types"]
        assert {node["labels"]["role"] for node in types.values()} == {"head", "target", "draft"}
        assert cluster()["head_node_type"] in types

    def test_runtime_env_is_valid_and_leaves_the_heavy_things_here(self) -> None:
        from ray.runtime_env import RuntimeEnv

        values = yaml.safe_load((REPOSITORY / "jobs/runtime_env.yaml").read_text())
        assert RuntimeEnv(**values)["env_vars"]["PYTHONPATH"] == "platform:."
        for folder in ("/.venv*/", "/.demo/", "/runs/", "/tests/"):
            assert folder in values["excludes"]


class TestDocuments:
    def test_citation_prefers_the_paper(self) -> None:
        citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
        assert {"cff-version", "message", "title", "authors"} <= set(citation)
        paper = citation["preferred-citation"]
        assert {"type", "title", "authors", "year"} <= set(paper)
        assert "2604.07622" in paper["identifiers"][0]["value"]

    def test_readme_has_a_generated_results_block_and_says_lossy(self) -> None:
        text = (REPOSITORY / "README.md").read_text()
        assert text.count("<!-- results:begin -->") == text.count("<!-- results:end -->") == 1
        assert text.index("<!-- results:begin -->") < text.index("<!-- results:end -->")
        first_screen = text[: text.index("<!-- results:begin -->")]
        assert "Lossy by design" in first_screen
        assert "make demo\n" in first_screen
        assert "make demo-stop\n" in first_screen

    @pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
    def test_commands_exist(self, document: Path) -> None:
        """Make targets, jobs and their settings: each command of a document can be typed."""
        text = document.read_text()
        targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), flags=re.MULTILINE))
        for words in commands(text):
            if "make" in words:
                target = words[words.index("make") + 1]
                assert target in targets, f"make {target}"
            modules = [word for word in words if word.startswith("jobs.")]
            for module in modules:
                file = REPOSITORY / f"{module.replace('.', '/')}.py"
                assert file.is_file(), module
                arguments = words[words.index(module) + 1 :]
                if "jobs._main" in file.read_text() and module != "jobs.demo":
                    given = [argument for argument in arguments if argument != "&"]
                    if module == "jobs.study":
                        assert (REPOSITORY / given.pop(0)).is_file()
                    load_settings(given)
        for module in re.findall(r"`(?:python -m )?(jobs[./][a-z0-9_]+)(?:\.py)?`", text):
            assert (REPOSITORY / f"{module.replace('.', '/')}.py").is_file(), module

    def test_documentation_has_every_page_of_its_menu(self) -> None:
        text = re.sub(r"!!python/name:\S+", "null", (REPOSITORY / "mkdocs.yml").read_text())
        menu = yaml.safe_load(text)["nav"]
        pages = {page for entry in menu for page in leaves(entry)}
        written = {str(path.relative_to(REPOSITORY / "platform/docs")) for path in DOCUMENTS[1:]}
        assert pages == written

    def test_documentation_can_be_built(self, tmp_path: Path) -> None:
        """Strictly: a page that hides another and a link that leads nowhere are errors."""
        built = subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
            cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": "platform:.", "NO_MKDOCS_2_WARNING": "1"},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert built.returncode == 0, built.stderr
        assert (tmp_path / "results" / "full" / "study_arithmetic.html").is_file()


def leaves(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in leaves(part)]
