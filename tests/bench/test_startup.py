"""What starting takes. Times themselves are never asserted."""

import pytest

from shoal.bench import startup


def test_rows_of_the_bench(monkeypatch):
    measured = startup.measured
    other = {"import torch": "import json"}  # stands in for torch, which takes seconds to import
    monkeypatch.setattr(startup, "measured", lambda code, *words: measured(other.get(code, code), *words))
    (row,) = startup.run("train --episodes 0 (refused)", turns=1)
    assert row["ratio"] == pytest.approx(row["cpu_seconds"] / row["torch_cpu_seconds"]) and row["seconds"] > 0


def test_failing_command_is_not_measured():
    with pytest.raises(RuntimeError, match="exit code 3"):
        startup.measured("raise SystemExit(3)")
