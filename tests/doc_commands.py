"""The commands that the documents and the help texts show, and the extras that their text says they need."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from shoal.cli import COMMANDS
from shoal.commands.mac import COMMANDS as MAC_COMMANDS

ROOT = Path(__file__).parents[1]
EXTRAS = ("pettingzoo", "sb3", "control", "box2d", "atari", "cluster", "data", "track")
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMENT = re.compile(r"(?:^| )# .*")


@dataclass(frozen=True)
class Command:
    """One command of a document.

    Attributes:
        document: path of the page, or `shoal train --help`.
        text: as it is written, without comment.
        extras: what the text says that it needs.
        shown: whether it is in a block or in a table of commands, to be copied; else a sentence mentions it, perhaps
            without what must be filled in.
    """

    document: str
    text: str
    extras: frozenset[str]
    shown: bool

    @property
    def words(self) -> list[str]:
        """The arguments behind `shoal`."""
        return shlex.split(self.text)[1:]


def needed(text: str) -> frozenset[str]:
    """The extras that a text names: "needs `sb3` and `control`", "# needs sb3", or pip install … ".[sb3]"."""
    one = rf"`?(?:{'|'.join(EXTRAS)})\b`?"
    said = re.findall(rf"needs?\s+(?:the\s+extras?\s+)?({one}(?:(?:,| and|, and)\s+{one})*)", text)
    said += re.findall(r"pip install .*\.\[(.*?)\]", text)
    return frozenset(extra for names in said for extra in re.findall(r"\w+", names) if extra in EXTRAS)


def page_commands(document: str, text: str) -> list[Command]:
    """The commands of a page: those of its blocks and tables in their order, then those in sentences.

    What the introduction needs is there for the whole page, what a section needs for the section, what is said in the
    line of a command for that command.
    """
    text = re.sub(r"```.*?```", "", text, flags=re.S)  # code in other languages
    introduction, *sections = re.split(r"^(?=## )", text, flags=re.M)
    everywhere = needed(prose(introduction))
    found = commands_of(document, introduction, everywhere)
    for section in sections:
        found += commands_of(document, section, everywhere | needed(prose(section)))
    return [one for one in found if one.shown] + [one for one in found if not one.shown]


def prose(section: str) -> str:
    """A section without the lines that say what a single command needs."""
    return "\n".join(line for line in joined(section) if "shoal " not in line)


def joined(section: str) -> list[str]:
    """The lines of a section; those that end in a backslash with their continuation."""
    return re.sub(r"\\\n\s+", "", section).splitlines()


def commands_of(document: str, section: str, extras: frozenset[str]) -> list[Command]:
    """The commands of a section of which the text names these extras."""
    found, sentences, in_table = [], [], False
    for line in joined(section):
        block = re.match(r"    (shoal .*)$", line)
        in_table = line.startswith("|") and (in_table or line.startswith("| command |"))
        row = re.match(r"\| `(shoal [^`]*)` \|", line) if in_table else None
        if shown := block or row:
            found.append(Command(document, COMMENT.sub("", shown[1]).strip(), extras | needed(line), True))
        elif not line.startswith("    "):
            sentences.append(line)
    for text in re.findall(r"`(shoal\s[^`]*)`", "\n".join(sentences)):
        found.append(Command(document, " ".join(text.split()), extras, False))
    return found


def help_commands() -> list[Command]:
    """The examples of every command's help text."""
    found = []
    for name, function in [*COMMANDS.items(), *((f"mac {name}", one) for name, one in MAC_COMMANDS.items())]:
        _, _, examples = (function.__doc__ or "").partition("\n")
        found += page_commands(f"shoal {name} --help", re.sub(r"^ +(?=shoal)", "    ", examples, flags=re.M))
    return found


def all_commands() -> list[Command]:
    """Every command of every document, and of the help texts."""
    pages = [page_commands(str(path.relative_to(ROOT)), path.read_text()) for path in DOCUMENTS]
    return [command for page in pages for command in page] + help_commands()
