"""A writer may die, or its disk may refuse, at every single operation: a whole checkpoint is always there."""

import errno
import io
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_ring import FakeRing, check, load, names, no_warning, save, two_checkpoints

from shoal.errors import UserError
from shoal.training import disk
from shoal.training.checkpoint import Checkpoints

CHANGES = ("open", "fsync", "close", "mkdir", "rename", "unlink", "rmdir")
LOOKS = ("stat", "listdir")


class Faults:
    """Counts the operations on the disk and does something at one of them: a write is then half done."""

    def __init__(self, patch: pytest.MonkeyPatch, at: Callable[[int], bool], act: Callable[[], None], calls: tuple[str, ...]):
        self.count, self.at, self.act = 0, at, act
        for name in calls:
            patch.setattr(os, name, self.counted(getattr(os, name)))
        patch.setattr(disk, "open", self.open, raising=False)

    def operation(self) -> None:
        self.count += 1
        if self.at(self.count):
            self.act()

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **options: Any) -> Any:
            self.operation()
            return call(*args, **options)

        return operation

    def open(self, path: Path, mode: str) -> io.FileIO:
        self.operation()
        faults = self

        class File(io.FileIO):
            def write(self, data: Any) -> int:
                half = len(data) // 2
                super().write(data[:half])
                faults.operation()
                return half + super().write(data[half:])

        return File(path, mode.replace("b", ""))


def first(run: Path) -> tuple[Checkpoints, FakeRing, int]:
    """The very first checkpoint of a run."""
    return Checkpoints(run / "checkpoints"), FakeRing().add(10), 1


def next_one(run: Path) -> tuple[Checkpoints, FakeRing, int]:
    """A checkpoint after which another and a segment go; parts of killed writers lie about."""
    store = Checkpoints(run / "checkpoints")
    ring = check(store.load(no_warning))
    return store, ring.add(38), 3


def same_episode(run: Path) -> tuple[Checkpoints, FakeRing, int]:
    """A checkpoint in the place of one of the same episode."""
    store = Checkpoints(run / "checkpoints")
    ring = check(store.load(no_warning))
    return store, ring.add(4), 2


def only_one(run: Path) -> tuple[Checkpoints, FakeRing, int]:
    """A checkpoint in the place of the only one there is."""
    shutil.rmtree(run / "checkpoints/00000001", ignore_errors=True)
    return same_episode(run)


def after_damage(run: Path) -> tuple[Checkpoints, FakeRing, int]:
    """A checkpoint with the names of a damaged one and its segment."""
    (run / "checkpoints/00000002/weights.safetensors").write_bytes(b"")
    store = Checkpoints(run / "checkpoints")
    ring = check(store.load(lambda text: None))
    return store, ring.add(20), 2


SCENES = [first, next_one, same_episode, only_one, after_damage]


@pytest.fixture(params=SCENES, ids=lambda scene: scene.__name__)
def runs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], tuple[Checkpoints, FakeRing, int]]]:
    """Makes a fresh run folder in the same situation at each call, ready to save."""
    template, run = tmp_path / "template", tmp_path / "run"
    template.mkdir()
    if request.param is not first:
        two_checkpoints(template)

    def fresh() -> tuple[Checkpoints, FakeRing, int]:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(template, run)
        return request.param(run)

    return fresh


def until_untouched(trial: Callable[[int], bool]) -> int:
    """Try a fault at the first operation, the second and so on, until one is never reached; returns how many were."""
    k = 1
    while trial(k):
        k += 1
    return k - 1


def added_on_disk(folder: Path) -> int | None:
    """How far the newest whole checkpoint got, all of it compared; None if there is none."""
    found = Checkpoints(folder).load(lambda text: None)
    return None if found is None else check(found).added


def goes_on(folder: Path) -> None:
    """A new process loads, saves, and leaves nothing but two checkpoints and their segments."""
    store = Checkpoints(folder)
    found = store.load(lambda text: None)
    ring = FakeRing() if found is None else check(found)
    save(store, 8, ring.add(2))
    save(store, 9, ring.add(2))
    assert names(folder) == ["00000008", "00000009", "replay"]
    needed = {segment.name for segment in load(folder).segments}
    check(load(folder))
    shutil.rmtree(folder / "00000009")
    assert names(folder / "replay") == sorted(needed | {segment.name for segment in load(folder).segments})


def test_killed_at_every_operation(runs: Callable[[], tuple[Checkpoints, FakeRing, int]]) -> None:
    outcomes = []

    def trial(k: int) -> bool:
        store, ring, episode = runs()
        before = added_on_disk(store.folder)
        child = os.fork()
        if child == 0:
            try:
                Faults(pytest.MonkeyPatch(), lambda n: n == k, lambda: os._exit(9), CHANGES)
                save(store, episode, ring)
                os._exit(0)
            finally:
                os._exit(1)
        died = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert died in (0, 9)
        after = added_on_disk(store.folder)
        assert after in (before, ring.added)
        outcomes.append(after)
        goes_on(store.folder)
        return died == 9

    assert until_untouched(trial) > 20
    assert len(set(outcomes)) == 2  # some died before the new one counted, some after
    assert outcomes == sorted(outcomes, key=lambda added: added or 0)  # and never the old one again


def test_refused_at_every_operation(runs: Callable[[], tuple[Checkpoints, FakeRing, int]]) -> None:
    """One operation fails, and the same process goes on."""

    def trial(k: int) -> bool:
        store, ring, episode = runs()
        before = added_on_disk(store.folder)
        listing = sorted(store.folder.rglob("*"))
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, lambda n: n == k, full_disk, CHANGES + LOOKS)
            refused = attempt(store, episode, ring)
        after = added_on_disk(store.folder)
        assert after in ((before, ring.added) if refused else (ring.added,))
        if refused and after == before and episode != 2 and faults.count > k:
            left = [path for path in store.folder.rglob("*") if path not in listing and path.name != "replay"]
            assert len(left) <= 2, left  # `checkpoints` made anew
        save(store, 7, ring.add(2))
        assert added_on_disk(store.folder) == ring.added
        goes_on(store.folder)
        return faults.count >= k

    assert until_untouched(trial) > 40


def test_refused_from_every_operation_on(runs: Callable[[], tuple[Checkpoints, FakeRing, int]]) -> None:
    """The disk goes away for good, so that nothing can be put right either."""

    def trial(k: int) -> bool:
        store, ring, episode = runs()
        before = added_on_disk(store.folder)
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, lambda n: n >= k, full_disk, CHANGES + LOOKS)
            refused = attempt(store, episode, ring)
        after = added_on_disk(store.folder)
        assert after in ((before, ring.added) if refused else (ring.added,))
        goes_on(store.folder)
        return faults.count >= k

    assert until_untouched(trial) > 40
