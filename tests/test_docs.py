"""The documents: links and navigation lead somewhere, lines are short, examples run, API pages name what exists."""

import importlib
import inspect
import re
from pathlib import Path, PurePosixPath

import pytest

from tests import changed
from tests.doc_blocks import run_blocks

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
DOCUMENTS = [*PAGES, *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING"))]
LONGEST = 120


def name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_lines_are_short(path):
    long = [f"{number}: {line}" for number, line in enumerate(path.read_text().splitlines(), 1) if len(line) > LONGEST]
    assert not long


def without_code(text):
    return re.sub(r"```.*?```|`[^`\n]*`|^    [^\n]*$", "", text, flags=re.S | re.M)


def anchors(path):
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)$", without_code(path.read_text()), re.M)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links_resolve(path):
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text())):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


def test_the_navigation_names_every_page():
    named = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert sorted(named) == sorted(str(path.relative_to(DOCS)) for path in PAGES)


def test_the_index_of_results_names_every_page():
    named = re.findall(r"\]\((results/\S+\.md)\)", (DOCS / "results.md").read_text())
    assert sorted(named) == sorted(f"results/{path.name}" for path in (DOCS / "results").iterdir())


def test_included_sections_are_marked():
    """Pages include sections of the README, so that there is one copy of each."""
    for page in PAGES:
        for file, section in re.findall(r'^--8<-- "(\S+?)(?::(\S+))?"$', page.read_text(), re.M):
            marks = [f"[{mark}:{section}]" for mark in ("start", "end")] if section else []
            assert all((ROOT / file).read_text().count(f"--8<-- {mark}") == 1 for mark in marks), f"{page}: {section}"


def test_the_tests_of_every_module_can_be_found():
    """At its own path under tests/, or where the table in docs/testing.md says, which names modules one by one."""
    rows = changed.table()
    package = ROOT / "papers" / "shoal_papers"
    modules = {str(path.relative_to(ROOT / "shoal")) for path in (ROOT / "shoal").rglob("[!_]*.py")}
    modules |= {f"papers/{path.relative_to(package)}" for path in package.rglob("[!_]*.py")}
    named = {name for names, _ in rows for name in names}
    unknown = named - modules
    assert not unknown, f"the table names what is no module, or a wildcard: {sorted(unknown)}"
    missing = [test for _, tests in rows for test in tests if not (ROOT / "tests" / test).exists()]
    assert not missing, f"the table names tests that do not exist: {missing}"
    without = [module for module in modules - named if not changed.mirrored(PurePosixPath(module))]
    assert not without, f"neither at their own path nor in the table: {sorted(without)}"


def described():
    """What the API pages describe, as dotted names."""
    return [dotted for path in PAGES for dotted in re.findall(r"^::: (\S+)$", path.read_text(), re.M)]


@pytest.mark.parametrize("dotted", described())
def test_api_pages_match_the_code(dotted):
    """Under a name that can be imported, with a docstring whose arguments are those of the function."""
    module, _, attribute = dotted.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    assert inspect.getdoc(found)
    members = [found] if inspect.isfunction(found) else [f for _, f in inspect.getmembers(found, inspect.isfunction)]
    for function in members:
        text = inspect.getdoc(function) or ""
        _, _, section = text.partition("\nArgs:\n")
        arguments = re.findall(r"^    (\S[^:\n]*):", section.partition("\n\n")[0], re.M)
        assert set(arguments) <= set(inspect.signature(function).parameters), function.__qualname__


def examples():
    """The code of each section of docs/extending.md and docs/worlds.md: (title of the block, code)."""
    for page in ("extending.md", "worlds.md"):
        for section in re.split(r"^## ", (DOCS / page).read_text(), flags=re.M):
            if blocks := re.findall(r'^```python(?: title="(.*?)")?\n(.*?)^```', section, re.S | re.M):
                yield pytest.param(blocks, id=section.partition("\n")[0])


@pytest.mark.parametrize("blocks", examples())
def test_examples_run(blocks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run_blocks(blocks)
