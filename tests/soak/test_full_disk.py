"""Sweeps on a disk that fills up: one sentence per run, and once there is room they finish with the same bits."""

import subprocess
from pathlib import Path

import pytest

from tests.soak.harness import check_sentence, digest, returns

FULL = 12
"""Sweeps, each on a disk of another size."""
SEEDS = 3
SWEEP = (
    f"train --seeds 0-{SEEDS - 1} --episodes 150 --copies 2 --episode-length 5 --warmup 20 --batch 8 --hidden 8 8 "
    "--update-every 5 --evaluate-episodes 2 --checkpoint-every 3 --log-every 1 --keep-replay --quiet"
).split()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a file system needs privileges")
    yield place
    subprocess.run(["umount", place], check=True)


def resize(place: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", place], check=True)


def runs(sweep: Path) -> list[Path]:
    return [sweep / f"seed{seed}" for seed in range(SEEDS)]


@pytest.mark.slow
def test_full_disk(soak, small_disk, tmp_path, shoal_process):
    whole = tmp_path / "whole"
    assert shoal_process.run([*SWEEP, "--out", whole], tmp_path, 300).code == 0
    for case in soak.cases(FULL):
        with case:
            sweep, size = small_disk / f"sweep{case.number}", case.rng.randrange(50_000, 1_200_000)
            resize(small_disk, size)
            case.story = f"a disk of {size:,} bytes"
            ended = shoal_process.run([*SWEEP, "--out", sweep], tmp_path, 300)
            assert ended.code in (0, 2) and not ended.out, ended
            for line in ended.err.splitlines():
                check_sentence(line)
            case.count("filled up" if ended.code else "large enough")
            resize(small_disk, 100_000_000)
            again = shoal_process.run([*SWEEP, "--out", sweep], tmp_path, 300)
            assert again.code == 0, again
            assert list(map(digest, runs(sweep))) == list(map(digest, runs(whole))), "other weights"
            assert list(map(returns, runs(sweep))) == list(map(returns, runs(whole))), "other returns"
            subprocess.run(["rm", "-r", sweep], check=True)
