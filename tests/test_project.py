"""What belongs to the project as a whole: the version, releases, CI, hooks, and which tests `make quick` runs."""

import re
import tomllib
from types import SimpleNamespace

import pytest
import yaml

import shoal
from tests import changed

ROOT = changed.ROOT


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("shoal/replay/ring.py", {"tests/replay/test_ring.py", "tests/replay/test_ring_returns.py"}),
        ("shoal/replay/layout.py", {"tests/replay/test_ring.py"}),  # named in the table
        ("shoal/policies/torch_policy.py", {"tests/commands/test_quantize.py"}),
        ("shoal/actorq/remote.py", {"tests/actorq/test_cluster.py"}),  # in braces there
        ("shoal/cli.py", {"tests/cli", "tests/test_wrong_inputs.py"}),
        ("shoal/__init__.py", {"tests/test_api.py", "tests/test_project.py"}),
        ("shoal/envs/__init__.py", {"tests/envs"}),
        ("shoal/seeding.py", set()),
        ("shoal/replay/deleted.py", set()),
        ("tests/replay/test_ring.py", {"tests/replay/test_ring.py"}),
        ("tests/replay/test_deleted.py", set()),
        ("tests/cli/helpers.py", {"tests/cli"}),
        ("tests/conftest.py", set()),
        ("docs/replay.md", {"tests/test_docs.py", "tests/test_doc_commands.py"}),
        ("papers/cells/a.json", set()),
        ("papers/shoal_papers/cells.py", {"tests/papers/test_cells.py"}),
        ("Makefile", {"tests/test_project.py"}),
        ("tests/changed.py", {"tests/test_project.py"}),
    ],
)
def test_tests_selected_by_make_quick(path, tests):
    assert set(changed.tests_of(path)) == tests


def test_quick_skips_tests_after_the_time_limit(monkeypatch):
    monkeypatch.delenv(changed.END, raising=False)
    changed.pytest_runtest_setup(SimpleNamespace())
    monkeypatch.setenv(changed.END, "1")
    with pytest.raises(pytest.skip.Exception):
        changed.pytest_runtest_setup(SimpleNamespace())


def test_quick_refuses_an_unknown_commit():
    with pytest.raises(SystemExit, match="SINCE="):
        changed.changed_since("no-such-commit")


def test_the_version_is_in_one_place():
    """A literal in shoal/__init__.py, which setuptools reads without importing Shoal; the newest release has it."""
    held = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in held["project"] and "version" in held["project"]["dynamic"]
    assert held["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "shoal.__version__"}
    assert f'\n__version__ = "{shoal.__version__}"\n' in (ROOT / "shoal" / "__init__.py").read_text()
    assert "\nversion:" not in (ROOT / "CITATION.cff").read_text()
    releases = re.findall(r"^## (\d\S*) \(\d{4}-\d\d-\d\d\)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert releases[0] == shoal.__version__


def test_hosted_ci_only_calls_the_makefile():
    (job,) = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"].values()
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    commands = [step["run"].split() for step in job["steps"] if "run" in step and step["run"][0] != ":"]
    assert commands and all(words[0] == "make" and words[1] in targets for words in commands)


def test_pre_commit_hooks_fetch_nothing():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local" and {hook["language"] for hook in repository["hooks"]} == {"system"}


def test_slow_tests_import_what_there_is():
    """Nobody runs them for weeks: modules that have moved would be noticed late."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for module, names in re.findall(r"^ +from (tests[\w.]*) import ([\w, ]+)$", path.read_text(), re.MULTILINE):
            source = ROOT / module.replace(".", "/")
            text = source.with_suffix(".py") if source.with_suffix(".py").exists() else source / "__init__.py"
            for name in names.split(", "):
                defined = re.search(rf"\b{name.split(' as ')[0]}\b", text.read_text())
                assert defined or (source / f"{name}.py").exists(), f"{path.name}: from {module} import {name}"
