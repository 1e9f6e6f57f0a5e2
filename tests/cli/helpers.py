"""What the tests of the command line share: short runs, sentences, signals at a given moment, strict JSON."""

import json
import os
from pathlib import Path

import pytest

HOME = Path(__file__).parent.parent.parent
SHORT = "--episodes 60 --warmup 300 --batch 32 --hidden 8 --evaluate-episodes 4 --threads 1 --log-every 10".split()
QUIET = [*SHORT, "--no-tensorboard", "--quiet"]


def one_sentence(said):
    assert said.startswith("shoal: ") and said.endswith(".\n") and len(said.splitlines()) == 1, said
    return said


def send(*numbers):
    for number in numbers:
        os.kill(os.getpid(), number)


def call_before(monkeypatch, owner, name, action, at=1):
    """Call `action` before the method or function called `name` is entered for the `at`-th time."""
    original, calls = getattr(owner, name), 0

    def patched(*arguments, **keywords):
        nonlocal calls
        calls += 1
        if calls == at:
            action()
        return original(*arguments, **keywords)

    monkeypatch.setattr(owner, name, patched)


def strict(text):
    """JSON without NaN and infinities, which only Python knows."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def lines(run):
    data = (Path(run) / "metrics.jsonl").read_bytes()
    assert b"\0" not in data
    return [strict(line) for line in data.splitlines()]
