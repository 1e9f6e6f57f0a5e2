"""`make quick`: the tests of what has changed since a commit, or of named folders.

    python -m tests.changed --since main
    python -m tests.changed tests/replay

A module's tests are found as docs/testing.md says: by its path, else in the table there. As a plugin of pytest
(`-p tests.changed`), it skips what has not begun when the time is up, in each worker.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENT_TESTS = [ROOT / "tests" / "test_docs.py", ROOT / "tests" / "test_doc_commands.py"]
PROJECT_TESTS = ROOT / "tests" / "test_project.py"
END = "SHOAL_QUICK_END"
"""The variable with the time (seconds since 1970) after which no test begins."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Skip tests that would begin too late."""
    if time.time() > float(os.environ.get(END, "inf")):
        pytest.skip("make quick: the time is up")


def table():
    """The rows of the table in docs/testing.md: modules in shoal/, files and folders in tests/."""
    _, _, section = (ROOT / "docs" / "testing.md").read_text().partition("## Where the tests of a module are\n")
    rows = re.findall(r"^\| (.*?) \| (.*?) \|$", section.partition("\n## ")[0].partition("|---|---|")[2], re.M)
    return [tuple(_names(column) for column in row) for row in rows]


def _names(column):
    """The names in backquotes; `a/{b,c}.py` is two of them."""
    names = []
    for name in re.findall("`(.*?)`", column):
        match = re.fullmatch(r"(.*)\{(.*)\}(.*)", name)
        names += [match[1] + part + match[3] for part in match[2].split(",")] if match else [name]
    return names


def mirrored(module):
    """The tests of `x/y.py` in shoal/ by their path: `x/test_y.py` and `x/test_y_….py` in tests/."""
    folder, stem = ROOT / "tests" / module.parent, module.stem
    return [*folder.glob(f"test_{stem}.py"), *folder.glob(f"test_{stem}_*.py")]


def tests_of_module(module):
    """The tests of `x/y.py` in shoal/: mirrored, else those of the rows that name it."""
    if module == PurePosixPath("__init__.py"):  # the public names and the version, not the whole suite
        return [ROOT / "tests" / "test_api.py", PROJECT_TESTS]
    if module.name == "__init__.py":
        return [ROOT / "tests" / module.parent]
    if found := mirrored(module):
        return found
    return [ROOT / "tests" / test for modules, tests in table() if str(module) in modules for test in tests]


def tests_of(name):
    """The tests, relative to the root, of a file that has changed; none if only `make test` can tell."""
    path = PurePosixPath(name)
    if path.suffix == ".md" or name == "mkdocs.yml":
        found = DOCUMENT_TESTS
    elif path.parts[0] == "shoal":
        found = tests_of_module(path.relative_to("shoal"))
    elif name.startswith("papers/shoal_papers/"):
        found = tests_of_module("papers" / path.relative_to("papers/shoal_papers"))
    elif path.parts[0] != "tests":
        found = [PROJECT_TESTS] if len(path.parts) == 1 or path.parts[0] == ".github" else []
    elif path.name.startswith("test_"):
        found = [ROOT / path]
    elif name == "tests/changed.py":
        found = [PROJECT_TESTS]
    else:  # a helper of its folder; at the top, of everything
        found = [ROOT / path.parent] if len(path.parts) > 2 else []
    return sorted({path.relative_to(ROOT).as_posix() for path in found if path.exists()})


def changed_since(commit):
    """Files that differ from where this branch left `commit`, committed or not, new ones included."""

    def git(*words):
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"git {' '.join(words)}: {done.stderr.strip()}; name a commit, as in `make quick SINCE=HEAD~1`.")
        return done.stdout

    base = git("merge-base", commit, "HEAD").strip()
    listed = git("diff", "--name-only", "--no-renames", "-z", base)
    listed += git("ls-files", "--others", "--exclude-standard", "-z")
    return sorted(set(filter(None, listed.split("\0"))))


def main():
    """Print the tests, then run them; the exit code is pytest's."""
    parser = argparse.ArgumentParser(description="Run the tests of what has changed, or of named files and folders.")
    parser.add_argument("tests", nargs="*", help="files or folders of tests, instead of those of what has changed")
    parser.add_argument("--since", default="main", help="the commit to compare with (default: main)")
    parser.add_argument("--seconds", type=float, default=30, help="no test begins after so many seconds (default: 30)")
    options = parser.parse_args()
    tests = options.tests
    if not tests:
        found = {name: tests_of(name) for name in changed_since(options.since)}
        tests = sorted({test for of_one in found.values() for test in of_one})
        tests = [test for test in tests if not any(test.startswith(f"{folder}/") for folder in tests)]
        if without := [name for name, of_one in found.items() if not of_one]:
            print("Only `make test` covers:", " ".join(without))
    if not tests:
        print(f"Nothing to test has changed since {options.since}.")
        return 0
    print("Testing:", " ".join(tests), flush=True)
    words = ["-p", "tests.changed", "-n", "2", "--dist", "worksteal", "-rfE", *tests]
    settings = os.environ | {END: str(time.time() + options.seconds)}
    code = subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, env=settings).returncode
    if time.time() > float(settings[END]):
        print(f"Tests that had not begun after {options.seconds:g} s were skipped; `make test` runs all.")
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code  # all of them are slow


if __name__ == "__main__":
    sys.exit(main())
