"""A writer may die, or its disk may refuse, at every single operation: a whole checkpoint is always there."""

import contextlib
import errno
import io
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_ring
import pytest
from fake_ring import FakeRing, check, load, load_part, names, no_warning, save, two_checkpoints

from shoal.errors import UserError
from shoal.runs import disk
from shoal.runs.checkpoint import Checkpoints

CHANGES = ("mkdir", "rename", "unlink", "rmdir")  # besides the making and writing of files
OTHERS = (
    "open",
    "fsync",
    "close",
    "stat",
    "listdir",
)  # these can fail, but to die there is to die before the next change


@pytest.fixture(scope="module", autouse=True)
def no_sync() -> Iterator[None]:
    """A process that dies takes nothing back from the system's cache, so the tests need not wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


class Faults:
    """Counts the operations on the disk and does something before (or after, if `late`) some; writes are half done."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        calls: tuple[str, ...],
        at: Callable[[int], bool],
        act: Callable[[], None],
        late: bool = False,
    ) -> None:
        self.count, self.at, self.act, self.late = 0, at, act, late
        for name in calls:
            patch.setattr(os, name, self.counted(getattr(os, name)))
        patch.setattr(disk, "open", self.open, raising=False)

    def operation(self) -> None:
        self.count += 1
        if self.at(self.count):
            self.act()

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **options: Any) -> Any:
            if not self.late:
                self.operation()
            result = call(*args, **options)
            if self.late:
                self.operation()
            return result

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
    """A checkpoint after which another and a segment go."""
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


Scene = Callable[[], tuple[Checkpoints, FakeRing, int]]
SCENES = [first, next_one, same_episode, only_one, after_damage]


MEMORY = (
    "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
)  # thousands of small files: not on the disk, if possible


@pytest.fixture(params=SCENES, ids=lambda scene: scene.__name__)
def runs(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Makes a fresh run folder in the same situation at each call, ready to save."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        template, run = Path(place, "template"), Path(place, "run")
        template.mkdir()
        if request.param is not first:
            two_checkpoints(template)

        def fresh() -> tuple[Checkpoints, FakeRing, int]:
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(template, run)
            return request.param(run)

        yield fresh


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


def test_killed_at_every_operation(runs: Scene) -> None:
    outcomes = []

    def trial(k: int) -> bool:
        store, ring, episode = runs()
        before = added_on_disk(store.folder)
        child = os.fork()
        if child == 0:
            try:
                Faults(pytest.MonkeyPatch(), CHANGES, lambda n: n == k, lambda: os._exit(9))
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

    assert until_untouched(trial) > 15
    assert len(set(outcomes)) == 2  # some died before the new one counted, some after
    assert outcomes == sorted(outcomes, key=lambda added: added or 0)  # and never the old one again


def full_disk() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def attempt(store: Checkpoints, episode: int, ring: FakeRing) -> bool:
    """Save; whether that was refused, with the sentence that it takes."""
    try:
        save(store, episode, ring)
    except UserError as error:
        where = re.escape(str(store.folder / f"{episode:08d}"))
        why = r"(No space left on device|File exists \(.+\))"  # the latter: something in the way cannot be deleted
        assert re.fullmatch(rf"Checkpoint {where} could not be written: {why}\.", str(error))
        return True
    return False


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "for good"])
def test_refused_at_every_operation(runs: Scene, lasting: bool) -> None:
    """One operation fails, or all from there on so that nothing can be put right either; then the process goes on."""

    def trial(k: int) -> bool:
        store, ring, episode = runs()
        before, listing = added_on_disk(store.folder), set(store.folder.rglob("*"))
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, CHANGES + OTHERS, lambda n: n == k or (lasting and n > k), full_disk)
            refused = attempt(store, episode, ring)
        left = set(store.folder.rglob("*")) - listing - {store.folder / "replay"}
        after = added_on_disk(store.folder)
        assert after in ((before, ring.added) if refused else (ring.added,))
        if after == before and not lasting:
            assert not left
        save(store, 7, ring.add(2))
        assert added_on_disk(store.folder) == ring.added
        return faults.count >= k

    assert until_untouched(trial) > 40


def interrupt() -> None:
    raise KeyboardInterrupt


def test_interrupted_after_every_operation(runs: Scene) -> None:
    """Someone in a hurry presses Ctrl-C twice."""

    def trial(k: int) -> bool:
        store, ring, episode = runs()
        before = added_on_disk(store.folder)
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            faults = Faults(patch, CHANGES, lambda n: n == k, interrupt, late=True)
            save(store, episode, ring)
        assert added_on_disk(store.folder) in (before, ring.added)
        goes_on(store.folder)
        return faults.count >= k

    assert until_untouched(trial) > 15


def test_files_are_synced_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a power cut may take: files and names that were not synced."""
    folder = two_checkpoints(tmp_path)
    store = Checkpoints(folder)
    ring = check(store.load(no_warning))
    log: list[tuple[str, Any]] = []

    def logged(name: str, what: Callable[..., Any]) -> None:
        call = getattr(os, name)

        def operation(*args: Any, **options: Any) -> None:
            log.append((name, what(*args)))
            call(*args, **options)

        monkeypatch.setattr(os, name, operation)

    logged("fsync", lambda descriptor: os.fstat(descriptor).st_ino)
    logged("rename", lambda source, target: target.name)
    logged("unlink", lambda path: None)
    save(store, 3, ring.add(4))

    def synced(path: Path) -> int:
        return max(i for i, entry in enumerate(log) if entry == ("fsync", path.stat().st_ino))

    counts = log.index(("rename", "00000003"))
    new, segment = folder / "00000003", folder / "replay/000000000030-000000000034.safetensors"
    assert max(synced(path) for path in new.iterdir()) < synced(new) < counts
    assert synced(segment) < synced(folder / "replay") < counts
    assert counts < synced(folder) < log.index(("unlink", None), counts)


def test_killed_at_random_moments(tmp_path: Path) -> None:
    moments = random.Random(0)
    reached = 0
    for _ in range(8):
        command = [sys.executable, fake_ring.__file__, str(tmp_path / "checkpoints")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            said = [child.stdout.readline()]
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(moments.uniform(0, 0.1))
            child.send_signal(signal.SIGKILL)
            said += child.stdout.read().splitlines()
        added = check(load(tmp_path / "checkpoints"), FakeRing(400, copies=500)).added
        assert added >= int(said[-1]) > reached
        reached = added


# --- real refusals --------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def two(tmp_path: Path) -> Path:
    return two_checkpoints(tmp_path)


def test_missing_run_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "gone" / "checkpoints"
    with pytest.raises(UserError, match=f"^Checkpoint {folder}/00000001 could not be written: No such file") as error:
        save(Checkpoints(folder), 1, FakeRing())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/replay"])
def test_file_in_place_of_a_folder_is_refused(folder: Path, name: str) -> None:
    (folder.parent / name).parent.mkdir(exist_ok=True)
    (folder.parent / name).write_text("mine")
    with pytest.raises(UserError, match=r"File exists|Not a directory"):
        save(Checkpoints(folder), 1, FakeRing().add(2))
    assert (folder.parent / name).read_text() == "mine"


def test_reading_checkpoints_from_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    for read in (lambda path: Checkpoints(path).load(no_warning), lambda path: load_part(path, "weights")):
        with pytest.raises(UserError, match="cannot be read: Not a directory"):
            read(tmp_path / "checkpoints")


def test_short_write_is_an_error(two: Path) -> None:
    store = Checkpoints(two)
    ring = check(store.load(no_warning))
    before = sorted(two.rglob("*"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, limits[1]))  # the segment fits, meta.json does not
    try:
        with pytest.raises(UserError, match=r"00000003 could not be written: File too large\.$"):
            save(store, 3, ring.add(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(two.rglob("*")) == before
    assert check(load(two)).added == 30


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_read_only_folder_is_refused(two: Path) -> None:
    store = Checkpoints(two)
    ring = check(store.load(no_warning))
    two.chmod(0o500)
    try:
        with pytest.raises(UserError, match="could not be written: Permission denied"):
            save(store, 3, ring.add(2))
    finally:
        two.chmod(0o700)
    assert check(load(two)).added == 30
