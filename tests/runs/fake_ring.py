"""The smallest ring that a checkpoint can store, and checkpoints whose whole content follows from a few numbers."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.runs.checkpoint import Checkpoint, Checkpoints, newest


class FakeRing:
    """Its transitions hold their own numbers, plus a salt; one that was never loaded is NaN."""

    def __init__(self, capacity: int = 40, copies: int = 2, salt: int = 0) -> None:
        self.copies, self.salt, self.added = copies, salt, 0
        self.rows = np.full((capacity, copies, 3), np.nan, np.float32)
        self.row_bytes = self.rows[0, 0].nbytes

    @property
    def oldest(self) -> int:
        return max(0, self.added - len(self.rows))

    def add(self, count: int) -> "FakeRing":
        numbers = np.arange(self.added, self.added + count)
        self.rows[numbers % len(self.rows)] = (numbers + 1000 * self.salt)[:, None, None]
        self.added += count
        return self

    def content(self) -> list[float]:
        """The transitions that are there, oldest first."""
        return self.rows[np.arange(self.oldest, self.added) % len(self.rows), 0, 0].tolist()

    def segment(self, first: int, last: int) -> dict[str, NDArray[Any]]:
        assert self.oldest <= first < last <= self.added
        numbers = np.arange(first, last)
        return {"row": self.rows[numbers % len(self.rows)], "even": numbers % 2 == 0}

    def load_segment(self, first: int, last: int, arrays: dict[str, NDArray[Any]]) -> None:
        numbers = np.arange(first, last)
        assert arrays["even"].tolist() == (numbers % 2 == 0).tolist()
        live = numbers >= self.oldest
        self.rows[numbers[live] % len(self.rows)] = arrays["row"][live]

    def state(self) -> dict[str, NDArray[Any]]:
        return {"added": np.array(self.added)}

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        self.added = int(state["added"])


def parts_of(episode: int) -> dict[str, dict[str, NDArray[Any]]]:
    """Parts whose content follows from the episode."""
    return {"weights": {"w": np.full((2, 3), episode, np.float32)}, "random": {"counter": np.array(episode, np.uint64)}}


def save(store: Checkpoints, episode: int, ring: FakeRing, **meta: Any) -> Path:
    """A checkpoint that `check` recognises."""
    return store.save(episode, parts_of(episode), {"added": ring.added, **meta}, ring)


def check(checkpoint: Checkpoint | None, ring: FakeRing | None = None) -> FakeRing:
    """The ring of a checkpoint, loaded into the one given, after comparing all with what `save` was given."""
    assert checkpoint is not None
    assert checkpoint.parts["weights"]["w"].tolist() == [[checkpoint.episode] * 3] * 2
    assert checkpoint.parts["random"]["counter"] == checkpoint.episode
    ring = ring or FakeRing()
    checkpoint.load_ring(ring)
    assert ring.added == checkpoint.meta["added"]
    assert ring.content() == list(range(ring.oldest, ring.added))
    return ring


def two_checkpoints(run: Path) -> Path:
    """A folder with episodes 1 and 2: both name the segment 0-10, only the second names 10-30."""
    store, ring = Checkpoints(run / "checkpoints"), FakeRing()
    save(store, 1, ring.add(10))
    save(store, 2, ring.add(20))
    return store.folder


def no_warning(text: str) -> None:
    """For a load that must not complain."""
    raise AssertionError(text)


def load(folder: Path) -> Checkpoint:
    """What a new process finds, without a complaint."""
    found = Checkpoints(folder).load(no_warning)
    assert found is not None
    return found


def load_part(folder: Path, part: str, warn: Callable[[str], None] | None = None) -> dict[str, NDArray[Any]] | None:
    """One part of the newest checkpoint in which it is whole."""
    found = newest(folder, (part,), warn)
    return found.parts[part] if found else None


def names(folder: Path) -> list[str]:
    """What is in a folder."""
    return sorted(path.name for path in folder.iterdir())


def saver(folder: Path) -> None:
    """Load, then save for ever; tell after each save how far the disk must be."""
    store, ring = Checkpoints(folder), FakeRing(400, copies=500)
    found = store.load(no_warning)
    if found is not None:
        check(found, ring)
    while True:
        ring.add(10)
        save(store, ring.added // 30, ring)  # three to an episode
        print(ring.added, flush=True)


if __name__ == "__main__":
    saver(Path(sys.argv[1]))
