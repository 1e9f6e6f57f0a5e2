"""What starting takes. Times themselves are never asserted."""

import pytest

from shoal.bench import startup


def test_rows():
    (row,) = startup.run(("train --episodes 0 (refused)",), turns=1)
    assert row["ratio"] == pytest.approx(row["cpu_seconds"] / row["torch_cpu_seconds"]) and row["seconds"] > 0


def test_a_command_that_fails_is_not_measured():
    with pytest.raises(RuntimeError, match="exit code 3"):
        startup.measured("raise SystemExit(3)")
