"""Mistakes of the user: one sentence, exit code 2, no traceback; and helpers to check inputs."""

import difflib
import operator
from collections.abc import Iterable


class UserError(Exception):
    """What is wrong, where, and what would be right, in one sentence."""


class Diverged(UserError):
    """A training's numbers are not finite; the sentence has no full stop yet, because the loop knows more about it."""


class ActorsLost(UserError):
    """Who plays for a training is gone, all at once; a run that was asked to stop saves its state nevertheless."""


def closest(word: object, choices: Iterable[str]) -> str | None:
    """The choice that was probably meant by a word that is none of them.

    One holds the other (eval), they begin alike (evaluation), or they differ by a typing error: one in words of up to
    seven letters, two up to eleven, …. Words that merely share letters, such as report and export, are not close.
    """
    written = str(word).lower()

    def near(choice: str) -> bool:
        alike = written in choice or choice in written or written.startswith(choice[: max(5, 3 * len(choice) // 4)])
        return min(len(written), len(choice)) > 2 and (alike or _typed_for(written, choice))

    found = [choice for choice in choices if near(choice.lower())]
    return next(iter(difflib.get_close_matches(written, found, n=1, cutoff=0.0)), None)


def _typed_for(word: str, choice: str) -> bool:
    """Whether few typing errors (a letter too many, missing, wrong or swapped with the next) lie between them."""
    before: list[int] = []
    row = list(range(len(choice) + 1))  # errors from the word so far to the choice's beginnings
    for i, letter in enumerate(word, 1):
        older, before, row = before, row, [i]
        for j, other in enumerate(choice, 1):
            errors = min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == choice[j - 2] and word[i - 2] == other:
                errors = min(errors, older[j - 2] + 1)
            row.append(errors)
    return row[-1] <= max(1, min(len(word), len(choice)) // 4)


def perhaps(word: object, choices: Iterable[str]) -> str:
    """The same as words to put behind the wrong one, or nothing."""
    meant = closest(word, choices)
    return f" (perhaps you meant {meant})" if meant else ""


def setting(name: str) -> str:
    """How sentences name a setting: in backquotes, which the command line replaces by its option; other names stay."""
    return f"`{name}`" if name.isidentifier() else name


def check_choice(what: str, value: str, choices: tuple[str, ...] | list[str]) -> None:
    """Raise a `UserError` that lists the choices unless `value` is one of them."""
    if value not in choices:
        guess = perhaps(value, choices)
        raise UserError(f"{setting(what)} '{value}' is not known{guess}; choose one of: {', '.join(choices)}.")


def check_range(what: str, value: float, low: float, high: float | None = None) -> None:
    """Raise a `UserError` unless low <= value (<= high). NaN is out of every range."""
    if not (value >= low and (high is None or value <= high)):
        right = f"at least {low}" if high is None else f"from {low} to {high}"
        raise UserError(f"{setting(what)} is {value}, but must be {right}.")


def whole_number(what: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """`value` as an int, or a `UserError` if it is not a whole number (from low to high)."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise UserError(f"{setting(what)} is {value!r}, but must be a whole number.") from None
    if low is not None:
        check_range(what, number, low, high)
    return number


def install(extra: str) -> str:
    """What to do where the packages of one of Shoal's extras are missing; Shoal itself is not on PyPI."""
    return f"run pip install -c constraints.txt -e '.[{extra}]' in your clone of Shoal"


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number of things in words: 1 episode, 2,000 episodes; `plural` where it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def printable(text: str) -> str:
    """The text on one line: characters that a terminal would not show, or would obey, are written as escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
