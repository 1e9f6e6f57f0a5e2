"""One word, one meaning: names with these words are in the modules that docs/glossary.md lists, and nowhere else."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SECTION = "## One word, one meaning"


def declared() -> dict[str, list[str]]:
    """The modules, or folders of them, whose names or classes may have each word, by the glossary."""
    section = (ROOT / "docs" / "glossary.md").read_text().partition(SECTION)[2].partition("\n## ")[0]
    places: dict[str, list[str]] = {}
    for word, modules in re.findall(r"^\| (?:\*\*(\w+)\*\* )?\|[^|]*\|([^|]*)\|$", section, re.MULTILINE):
        if word or places:  # a line without a word continues the one above
            word = word or [*places][-1]
            places.setdefault(word, []).extend(re.findall("`([^`]+)`", modules))
    return places


def used() -> dict[str, dict[str, list[str]]]:
    """The names of modules and classes in which each word is, by module."""
    places: dict[str, dict[str, list[str]]] = {word: {} for word in declared()}
    for package in (ROOT / "shoal", ROOT / "papers" / "shoal_papers"):
        for path in sorted(package.rglob("*.py")):
            module = str(path.relative_to(package if package.name == "shoal" else package.parent))
            classes = (node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef))
            for name in (path.stem, *classes):
                for word in {part.lower().removesuffix("s") for part in re.findall("[A-Z]?[a-z]+|[A-Z]+", name)}:
                    if word in places:
                        places[word].setdefault(module, []).append(name)
    return places


@pytest.mark.parametrize("word", declared())
def test_a_word_is_only_where_the_glossary_says(word):
    names, places = used()[word], declared()[word]
    new = {module: found for module, found in names.items() if not any(module.startswith(place) for place in places)}
    assert not new, f"other names for these, or a line in {SECTION} of docs/glossary.md"
    gone = [place for place in places if not any(module.startswith(place) for module in names)]
    assert not gone, f"docs/glossary.md names what has no {word}"


def test_the_glossary_has_all_the_words():
    words = ["engine", "native", "precision", "scheme", "sweep", "cell", "plan", "figure", "row", "product"]
    assert list(declared()) == words
