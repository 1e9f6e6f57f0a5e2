"""What all pictures by matplotlib share: they are drawn one at a time, forks wait for them, and any text can be drawn.

matplotlib holds a lock of all figures while it draws one. A process that was forked meanwhile, in another thread, would
never see it released: its own first picture would wait forever, as would an import that was cut in two.
"""

import contextlib
import dataclasses
import logging  # noqa: F401  its lock must be taken after ours at a fork: the last to register comes first
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shoal.errors import printable

if TYPE_CHECKING:
    from matplotlib.ft2font import FT2Font

LONGEST_WAIT = 30.0  # seconds that a fork waits for a picture at most
_turn, _lock = threading.RLock(), threading.RLock()  # whoever waits for the lock has the turn: no one overtakes a fork


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Draw one picture from its first import to its last byte; also a decorator."""
    with contextlib.ExitStack() as stack:
        with _turn:
            stack.enter_context(_lock)
        yield


def _wait_for_picture() -> None:
    _turn.acquire(timeout=LONGEST_WAIT)
    _lock.acquire(timeout=LONGEST_WAIT)


def _go_on() -> None:
    for lock in (_lock, _turn):
        with contextlib.suppress(RuntimeError):  # the wait was in vain
            lock.release()


def _start_afresh() -> None:
    global _turn, _lock
    _turn, _lock = threading.RLock(), threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_picture, after_in_parent=_go_on, after_in_child=_start_afresh)


def plain(text: str) -> str:
    """The text for matplotlib: dollar signs are no formulas, and what no font has a glyph for is written as an escape.

    Names of folders, environments and agents may hold anything; a control character or an emoji would print a warning.
    """
    fonts = [] if text.isascii() else _fonts()

    def shown(char: str) -> str:
        drawn = char.isascii() or all(any(font.get_char_index(ord(char)) for font in weight) for weight in fonts)
        return char if drawn else char.encode("unicode_escape").decode()

    lines = ("".join(map(shown, printable(line))) for line in text.split("\n"))
    drawn = "\n".join(lines).replace("$", r"\$")
    return f" {drawn}" if drawn.startswith("_") else drawn  # legends would leave it out


def _fonts() -> "list[list[FT2Font]]":
    """The fonts that matplotlib takes glyphs from, of each weight that pictures use."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    families = FontProperties().get_family()
    return [
        [get_font(findfont(FontProperties(family=family, weight=weight))) for family in families]
        for weight in ("normal", "bold")
    ]


def plain_texts(value: Any) -> Any:
    """A figure, or anything inside one, with all its texts `plain`."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [plain_texts(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        values = {field.name: plain_texts(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return type(value)(**values)
    return value
