"""Commands under the limits that a shell puts on its processes."""

import pytest

from shoal.system.memory import LIMITS
from tests.cli.helpers import SHORT


def test_too_low_limit_for_the_libraries_is_refused(process, tmp_path):
    """Under it OpenBLAS asked for memory for ever while it was loaded, and no signal ended it."""
    ended = process(f"ulimit -v 1000000; shoal train --episodes 60 --copies 5 --threads 1 --out {tmp_path}/run")
    assert (ended.returncode, ended.stdout) == (2, "") and ended.stderr.count("\n") == 1
    assert "may take 1,000,000 kB of address space (ulimit -v)" in ended.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.option)
@pytest.mark.parametrize("implementation", ["engine", "reference"])
def test_required_limit_is_sufficient(process, tmp_path, monkeypatch, limit, implementation):
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))  # compiling takes the most
    asked = process(f"{limit.option} 100000; shoal train").stderr.rpartition("'")[0].rpartition("'")[2]
    assert asked.startswith(limit.option)
    words = " ".join(map(str, SHORT))
    ended = process(f"{asked}; shoal train {words} --implementation {implementation} --watch --out {tmp_path}/run")
    assert ended.returncode == 0, ended.stderr
