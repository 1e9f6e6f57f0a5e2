"""The cache of compiled code: used by many processes at once, damaged, of another processor, or not to be had."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from shoal.compiled import SUFFIX, TOLD
from tests.soak.compiling import NAMES
from tests.soak.harness import HOME, check_sentence

pytestmark = pytest.mark.slow

FULL = 60
SECONDS = 300
PROCESSORS = ("generic", "x86-64", "nehalem") if os.uname().machine == "x86_64" else ("generic",)
"""Older than any on which this runs."""
OTHER_USER = 65534


def started(names, **settings):
    """A process that waits for the end of its standard input; a setting of None is removed from the environment."""
    dropped = ("XDG_CACHE_HOME", TOLD)
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment |= {"PYTHONPATH": str(HOME), **settings}
    environment = {name: value for name, value in environment.items() if value is not None}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.soak.compiling", *names], env=environment, cwd=HOME, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ended(process, sentences=0):
    """What it has compiled and loaded; it must have said so many sentences and nothing else."""
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    said = err.splitlines()
    assert len(said) == sentences, err
    for line in said:
        check_sentence(line)
        assert line.startswith("Compiled code is not kept for later runs: ")
    return json.loads(out)


def check_all(cache, least=0):
    """A process finds at least so many functions in the cache, and one after it finds all."""
    assert ended(started(NAMES, SHOAL_CACHE=str(cache)))["loaded"] >= least
    again = ended(started(NAMES, SHOAL_CACHE=str(cache)))
    assert again["compiled"] == 0 and again["loaded"] > len(NAMES)
    assert all(path.suffix == SUFFIX for path in (cache / "compiled").iterdir())


def some(rng: Random, names=NAMES):
    return rng.sample(names, rng.randint(1, len(names)))


def at_once(case, cache, full):
    """Several processes compile what they need, in their own order, while others do."""
    lists = [some(case.rng) for _ in range(case.rng.randint(2, 6))]
    case.story = f"{len(lists)} processes compile at once"
    processes = [started(names, SHOAL_CACHE=str(cache)) for names in lists]
    for process in processes:
        process.stdin.close()
        process.stdin = None
    for process in processes:
        ended(process)
    check_all(cache, least=max(map(len, lists)))


def killed(case, cache, full):
    """Processes are killed while they compile and write."""
    case.story = "killed while they write"
    for _ in range(3):
        process = started(some(case.rng), SHOAL_CACHE=str(cache))
        process.stdin.close()
        process.stdin = None
        try:
            process.wait(0.5 + 3 * case.rng.random())
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
    check_all(cache)


def flip(path, rng):
    content = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 5)):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def take_another(path, rng):
    whole = [other for other in sorted(path.parent.iterdir()) if other.is_file() and os.access(other, os.R_OK)]
    path.write_bytes(rng.choice(whole).read_bytes())


DAMAGES = {
    "flipped": flip,
    "cut": lambda path, rng: os.truncate(path, rng.randrange(path.stat().st_size)),
    "longer": lambda path, rng: path.write_bytes(path.read_bytes() + rng.randbytes(rng.randint(1, 99))),
    "random": lambda path, rng: path.write_bytes(rng.randbytes(path.stat().st_size)),
    "another's": take_another,
    "gone": lambda path, rng: path.unlink(),
    "unreadable": lambda path, rng: path.chmod(0),
    "writable by others": lambda path, rng: path.chmod(0o666),
    "a link": lambda path, rng: (path.unlink(), path.symlink_to(path)),
}


def damaged(case, cache, full):
    """Some or all files are damaged."""
    shutil.copytree(full, cache)
    files = sorted((cache / "compiled").iterdir())
    chosen = case.rng.sample(files, case.rng.randint(1, len(files)))
    kinds = [case.rng.choice(list(DAMAGES)) for _ in chosen]
    case.story = f"{len(files)} files, of which {', '.join(kinds)}"
    for path, kind in zip(chosen, kinds, strict=True):
        DAMAGES[kind](path, case.rng)
    check_all(cache)


def of_another_processor(case, cache, full):
    """A processor finds nothing of another's, and spoils nothing."""
    name = case.rng.choice(PROCESSORS)
    case.story = f"a cache of this processor, used by {name}"
    shutil.copytree(full, cache)
    before = {path: path.read_bytes() for path in (cache / "compiled").iterdir()}
    names = some(case.rng)
    first = ended(started(names, SHOAL_CACHE=str(cache), NUMBA_CPU_NAME=name))
    assert first["loaded"] == 0 and first["compiled"] >= len(names)
    again = ended(started(names, SHOAL_CACHE=str(cache), NUMBA_CPU_NAME=name))
    assert again["compiled"] == 0 and again["loaded"] >= len(names)
    assert all(path.read_bytes() == content for path, content in before.items())
    assert ended(started(NAMES, SHOAL_CACHE=str(cache)))["compiled"] == 0


def unusual_place(case, cache, full):
    """A folder that is odd, or cannot be used: then one sentence says so."""
    root, place = os.geteuid() == 0, cache.parent / f"place {case.number}"
    place.mkdir()
    (place / "file").touch()
    (place / "folder").mkdir()
    (place / "link").symlink_to(place / "folder")
    (place / "loop").symlink_to(place / "loop")
    (place / "locked").mkdir(mode=0o555)
    home = {"SHOAL_CACHE": None}
    usable = [
        {"SHOAL_CACHE": str(place / "folder")}, {"SHOAL_CACHE": str(place / "link")},
        {"SHOAL_CACHE": str(place / "far" / "below" / "it")}, {"SHOAL_CACHE": str(place / "ümläut \udcff")},
        {"SHOAL_CACHE": "", "HOME": str(place / "folder")}, home | {"HOME": str(place / "missing")},
        home | {"HOME": str(place / "file"), "XDG_CACHE_HOME": str(place / "folder")},
        {"SHOAL_CACHE": os.path.relpath(place / "folder", HOME)},
    ]  # fmt: skip
    unusable = [
        {"SHOAL_CACHE": str(place / "file")}, {"SHOAL_CACHE": str(place / "loop")}, {"SHOAL_CACHE": "/dev/null"},
        {"SHOAL_CACHE": "/proc/shoal"}, {"SHOAL_CACHE": str(place / ("x" * 300))},
        home | {"HOME": str(place / "file")}, home | {"HOME": "/proc/nobody"}, home | {"XDG_CACHE_HOME": "/dev/full"},
    ]  # fmt: skip
    if not root:
        unusable += [{"SHOAL_CACHE": str(place / "locked")}, home | {"HOME": str(place / "locked")}]
    works = case.rng.random() < 0.5
    settings = case.rng.choice(usable if works else unusable)
    case.story = str(settings)
    names = some(case.rng)
    for earlier in (False, True):
        found = ended(started(names, **settings), sentences=0 if works else 1)
        assert (found["compiled"] == 0) == (works and earlier)
    if not works:  # as a child of such a process
        ended(started(names, **settings, **{TOLD: "1"}), sentences=0)


def of_another_user(case, cache, full):
    """Files that another user may have made are not run, and not written over; a read-only folder of ours is used."""
    case.story = "a folder of another user"
    shutil.copytree(full, cache)
    if os.geteuid() != 0:
        pytest.skip("only root can make files of another user")
    for path in (cache, cache / "compiled", *(cache / "compiled").iterdir()):
        os.chown(path, OTHER_USER, OTHER_USER)
    before = {path: path.read_bytes() for path in (cache / "compiled").iterdir()}
    names = some(case.rng)
    assert ended(started(names, SHOAL_CACHE=str(cache)), sentences=1)["loaded"] == 0
    assert {path: path.read_bytes() for path in (cache / "compiled").iterdir()} == before


SCENES = (at_once, at_once, at_once, killed, damaged, damaged, of_another_processor, unusual_place, unusual_place,
          of_another_user)  # fmt: skip


def test_random_cache_faults(soak, tmp_path):
    full = tmp_path / "full"
    check_all(full)
    for case in soak.cases(FULL):
        cache = tmp_path / f"cache {case.number}"
        with case:
            scene = SCENES[case.number % len(SCENES)]
            scene(case, cache, full)
            case.count(scene.__name__.replace("_", " "))
        for path in (cache, Path(f"{tmp_path}/place {case.number}")):
            shutil.rmtree(path, ignore_errors=True)
