"""Versions of a policy on their way between processes: one writer that never waits, readers that never see half of one.

Two slots hold the last two publications. The writer marks a slot as being written, fills it, marks it as whole and
only then counts it as the latest. A reader copies the latest slot and looks at its mark and checksum afterwards: if the
writer came round to it in the meantime, it reads again.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.actorq.checksum import copy_checked
from shoal.system.shared_memory import LINE, SharedMemory, aligned

Bytes = NDArray[np.uint8]
NUMBER, VERSION, SIZE, CHECKSUM = range(4)
"""Whole numbers in front of each slot."""
ATTEMPTS = 100
"""A reader that finds a slot damaged so often in a row refuses it; a writer cannot come round that often."""


def versions_bytes(size: int) -> int:
    """Shared memory that versions of at most `size` bytes take."""
    return LINE + 2 * (LINE + aligned(size))


@dataclass(frozen=True)
class Pulled:
    """A version as a reader got it."""

    number: int
    """Which publication it is, counted from 1."""
    version: int
    """The learner's updates when it was published."""
    payload: Bytes


class VersionSource(Protocol):
    """Where an actor gets versions from."""

    refused: int
    """Damaged versions that were not taken."""

    def pull(self, after: int = 0) -> Pulled | None:
        """The latest version if its number is beyond `after`."""
        ...


class Versions:
    """The two slots, as their writer or one of their readers sees them."""

    def __init__(self, memory: SharedMemory, size: int, offset: int = 0) -> None:
        """`size`: the most bytes that a version has."""
        self.size = aligned(size)
        self.refused = 0
        """Damaged versions that were not taken."""
        self._latest = memory.array(np.int64, (1,), offset)
        self._marks, self._slots = [], []
        for k in range(2):
            at = offset + LINE + k * (LINE + self.size)
            self._marks.append(memory.array(np.int64, (4,), at))
            self._slots.append(memory.array(np.uint64, (self.size // 8,), at + LINE))
        # a reader's copies: the last whole one stays as it is while the next is made, for an engine that reads it there
        self._held = self._spare = np.zeros(0, np.uint64)

    @property
    def latest(self) -> int:
        """The number of the latest publication; 0: there is none yet."""
        return int(self._latest[0])

    def publish(self, payload: Bytes, version: int) -> None:
        """Put a version, whose size is a multiple of 8, where every reader finds it."""
        number = self.latest + 1
        mark, slot = self._marks[number % 2], self._slots[number % 2]
        mark[NUMBER] = -number
        found = copy_checked(payload.view(np.uint64), slot)
        mark[VERSION], mark[SIZE] = version, payload.size
        mark[CHECKSUM : CHECKSUM + 1].view(np.uint64)[0] = np.uint64(found) ^ _said(version, payload.size)
        mark[NUMBER] = number
        self._latest[0] = number

    def pull(self, after: int = 0) -> Pulled | None:
        """The latest version if its number is beyond `after`; its payload stays until the next version is pulled."""
        if not self._held.size:  # ones, not zeros: all pages are touched now, not in the middle of the run
            self._held, self._spare = (np.ones(self.size // 8, np.uint64) for _ in range(2))
        for _ in range(ATTEMPTS):
            number = self.latest
            if number <= after:
                return None
            mark, slot = self._marks[number % 2], self._slots[number % 2]
            version, size = int(mark[VERSION]), int(mark[SIZE])
            if mark[NUMBER] != number or not 0 <= size <= self.size:
                continue
            found = copy_checked(slot[: size // 8], self._spare)
            same = np.uint64(found) ^ _said(version, size) == mark[CHECKSUM : CHECKSUM + 1].view(np.uint64)[0]
            if mark[NUMBER] == number and same:
                self._held, self._spare = self._spare, self._held
                return Pulled(number, version, self._held.view(np.uint8)[:size])
        self.refused += 1
        return None


def _said(version: int, size: int) -> np.uint64:
    """What a mark says beside the checksum, so that it is covered, too."""
    return np.uint64((version << 32) % 2**64 ^ size)
