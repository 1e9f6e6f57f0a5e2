"""What the soaks share: numbered cases that can be repeated alone, and what every message to a person must be."""

import collections
import hashlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import pytest
from safetensors.numpy import load_file

HOME = Path(__file__).parent.parent.parent

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


class Ended(NamedTuple):
    """How a command ended."""

    code: int | None
    """None: with an exception (`trace`), not in time, or the process died."""
    out: str
    err: str
    trace: str


class Shoal:
    """`shoal` in a process of its own that is kept for the next command; a new one after it hangs or dies."""

    MOST = 300
    """Commands of one process, so that nothing adds up."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._count = 0

    def run(self, words: Sequence[object], folder: Path, seconds: float = 60, patience: float | None = None) -> Ended:
        """Run a command; with `patience`, one that is still at work after so many seconds is sent SIGTERM."""
        process = self._ready()
        self._count += 1
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"words": list(map(str, words)), "folder": str(folder)}) + "\n")
        process.stdin.flush()
        if patience is not None and not self._answers(process, patience):
            process.send_signal(signal.SIGTERM)
        if not self._answers(process, seconds):
            self.close()
            return Ended(None, "", "", f"no end within {seconds:g} s")
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            self.close()
            return Ended(None, "", "", f"the process died with code {code}")
        ended = Ended(**json.loads(line))
        if ended.code is None or ended.code > 128:  # who knows what was interrupted
            self.close()
        return ended

    def _ready(self) -> "subprocess.Popen[str]":
        if self._count >= self.MOST:
            self.close()
        if self._process is None:
            command = [sys.executable, "-m", "tests.soak.worker"]
            environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HOME), os.environ.get("PYTHONPATH", "")])}
            self._count, self._process = 0, subprocess.Popen(
                command, cwd=HOME, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )  # fmt: skip
            assert self._process.stdout is not None and self._process.stdout.readline() == "ready\n"
        return self._process

    @staticmethod
    def _answers(process: "subprocess.Popen[str]", seconds: float) -> bool:
        return bool(select.select([process.stdout], [], [], seconds)[0])

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def check_ended(ended: Ended, asked_to_stop: bool = False) -> None:
    """No command ends in a traceback; a refusal is one sentence and nothing else."""
    assert ended.code is not None, ended.trace
    assert "Traceback" not in ended.err, ended.err
    allowed = (0, 2, 130, 143) if asked_to_stop else (0, 2)
    assert ended.code in allowed, f"exit code {ended.code}: {ended.err}"
    if ended.code == 2:
        assert ended.err.startswith("shoal: ") and ended.err.endswith("\n"), f"exit code 2 with: {ended.err!r}"
        check_sentence(ended.err.removeprefix("shoal: ").removesuffix("\n"))
        assert not ended.out, f"exit code 2, but standard output has: {ended.out!r}"


def check_json(text: str) -> dict[str, Any]:
    """Exactly one JSON object, without the NaN that only Python reads."""
    held = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert isinstance(held, dict) and len(text.splitlines()) == 1, f"not one JSON object: {text[:300]!r}"
    return held


def digest(run: Path) -> str:
    """Of the weights of the newest checkpoint."""
    newest = sorted((run / "checkpoints").glob("[0-9]*"))[-1]
    weights = load_file(newest / "weights.safetensors")
    parts = (name.encode() + weights[name].tobytes() for name in sorted(weights))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def returns(run: Path) -> dict[str, Any]:
    """The returns in the result of a finished run."""
    result = json.loads((run / "result.json").read_text())
    return {name: value for name, value in result.items() if name.startswith("return_")}
