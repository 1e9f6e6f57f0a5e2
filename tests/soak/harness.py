"""What the soaks share: numbered cases that can be repeated alone, and what every message to a person must be."""

import collections
import random
import time
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType

import pytest

MOST_FAULTS = 25
"""A soak that has found so many stops: the rest would be the same again."""


class Case:
    """One case with its own random numbers. Used as a context; whatever is raised inside is a fault of the soak."""

    def __init__(self, soak: "Soak", number: int) -> None:
        self.soak, self.number = soak, number
        self.rng = random.Random(f"{soak.name} {soak.seed} {number}")
        self.story = ""
        """What is being tried, told if it goes wrong."""

    def count(self, outcome: str) -> None:
        """Note how the case ended, for the summary."""
        self.soak.outcomes[outcome] += 1

    def __enter__(self) -> "Case":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or not isinstance(error, Exception | pytest.fail.Exception):
            return False
        last = "".join(traceback.format_exception(kind, error, trace, limit=-4))
        self.soak.faults.append(f"case {self.number}: {self.story}\n{last}  again: {self.soak.again(self.number)}")
        return True


class Soak:
    """A seeded soak: so many cases, all faults collected, what happened counted."""

    def __init__(self, name: str, scale: float, seed: int, only: int | None, record: Callable[[str], None]) -> None:
        self.name, self.scale, self.seed, self.only = name, scale, seed, only
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []
        self._record = record

    def again(self, number: int) -> str:
        """The command that runs one case alone."""
        return f"pytest -m slow tests/soak/{self.name}.py --soak-seed {self.seed} --soak-case {number}"

    def cases(self, full: int) -> Iterator[Case]:
        """`full` cases, more or fewer by --soak-scale; at the end the test fails if there were faults."""
        count, begin = max(1, round(full * self.scale)), time.monotonic()
        tried = 0
        for number in range(count) if self.only is None else [self.only]:
            yield Case(self, number)
            tried += 1
            if len(self.faults) >= MOST_FAULTS:
                break
        seconds = time.monotonic() - begin
        ends = ", ".join(f"{many:,} {outcome}" for outcome, many in self.outcomes.most_common())
        self._record(f"{self.name}: {tried:,} cases, {seconds:,.0f} s, {len(self.faults)} faults ({ends})")
        if self.faults:
            pytest.fail(f"{len(self.faults)} faults in {tried} cases\n\n" + "\n\n".join(self.faults), pytrace=False)


def check_sentence(text: str) -> None:
    """One sentence for a person: one line of text that begins like one and ends with a full stop."""
    assert text.endswith(".") and len(text.splitlines()) == 1 and text.isprintable(), f"not one sentence: {text!r}"
