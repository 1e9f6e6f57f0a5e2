"""Versions of a policy on their way between processes: one writer that never waits, readers that never see half of one.

Two slots hold the last two publications. The writer marks a slot as being written, fills it, marks it as whole and
only then counts it as the latest. A reader copies the latest slot and looks at its mark and checksum afterwards: if the
writer came round to it in the meantime, it reads again.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.compiled import njit
from shoal.system.shared_memory import LINE, SharedMemory, aligned

Bytes = NDArray[np.uint8]
NUMBER, VERSION, SIZE, CHECKSUM = range(4)  # whole numbers in front of each slot
ATTEMPTS = 100  # a reader that finds a slot damaged so often in a row refuses it; a writer cannot come round that often


@dataclass(frozen=True)
class Version:
    """A version as a reader got it."""

    number: int  # which publication it is, counted from 1
    version: int  # the learner's updates when it was published
    payload: Bytes


class Versions:
    """The two slots, as their writer or one of their readers sees them."""

    def __init__(self, size: int, memory: SharedMemory | None = None) -> None:
        """`size`: the most bytes that a version has."""
        self.size = aligned(size)
        self.memory = memory or SharedMemory(LINE + 2 * (LINE + self.size))
        self.refused = 0
        """Damaged versions that were not taken."""
        self._latest = self.memory.array(np.int64, (1,))
        places = [LINE + k * (LINE + self.size) for k in range(2)]
        self._marks = [self.memory.array(np.int64, (4,), at) for at in places]
        self._slots = [self.memory.array(np.uint64, (self.size // 8,), at + LINE) for at in places]
        # a reader's copies: the last whole one stays as it is while the next is made, for an engine that reads it there
        self._current = self._spare = np.zeros(0, np.uint64)

    @property
    def latest(self) -> int:
        """The number of the latest publication; 0: there is none yet."""
        return int(self._latest[0])

    def publish(self, payload: Bytes, version: int) -> None:
        """Put a version, whose size is a multiple of 8, where every reader finds it."""
        number = self.latest + 1
        mark, slot = self._marks[number % 2], self._slots[number % 2]
        mark[NUMBER] = -number
        total = copy_checked(payload.view(np.uint64), slot)
        mark[VERSION], mark[SIZE] = version, payload.size
        mark[CHECKSUM : CHECKSUM + 1].view(np.uint64)[0] = np.uint64(total) ^ _covered(version, payload.size)
        mark[NUMBER] = number
        self._latest[0] = number

    def pull(self, after: int = 0) -> Version | None:
        """The latest version if its number is beyond `after`; its payload stays until the next version is pulled."""
        if not self._current.size:  # ones, not zeros: all pages are touched now, not in the middle of the run
            self._current, self._spare = (np.ones(self.size // 8, np.uint64) for _ in range(2))
        for _ in range(ATTEMPTS):
            number = self.latest
            if number <= after:
                return None
            mark, slot = self._marks[number % 2], self._slots[number % 2]
            version, size = int(mark[VERSION]), int(mark[SIZE])
            if mark[NUMBER] != number or not 0 <= size <= self.size:
                continue
            total = copy_checked(slot[: size // 8], self._spare)
            same = np.uint64(total) ^ _covered(version, size) == mark[CHECKSUM : CHECKSUM + 1].view(np.uint64)[0]
            if mark[NUMBER] == number and same:
                self._current, self._spare = self._spare, self._current
                return Version(number, version, self._current.view(np.uint8)[:size])
        self.refused += 1
        return None


def _covered(version: int, size: int) -> np.uint64:
    """The rest of a mark, which its checksum covers, too."""
    return np.uint64((version << 32) % 2**64 ^ size)


@njit(cache=True, nogil=True)
def copy_checked(source, target):  # type: ignore[no-untyped-def]
    """Copy 64-bit words and return their checksum: four lanes, so that it takes no longer than the copy."""
    prime = np.uint64(0x9E3779B97F4A7C15)
    a, b, c, d = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    whole = source.size // 4 * 4
    for i in range(0, whole, 4):
        w, x, y, z = source[i], source[i + 1], source[i + 2], source[i + 3]
        target[i], target[i + 1], target[i + 2], target[i + 3] = w, x, y, z
        a, b, c, d = (a ^ w) * prime, (b ^ x) * prime, (c ^ y) * prime, (d ^ z) * prime
    for i in range(whole, source.size):
        target[i] = source[i]
        a = (a ^ source[i]) * prime
    return ((a * prime ^ b) * prime ^ c) * prime ^ d


@njit(cache=True, nogil=True)
def checksum(words):  # type: ignore[no-untyped-def]
    """What `copy_checked` returns for these words."""
    prime = np.uint64(0x9E3779B97F4A7C15)
    a, b, c, d = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    whole = words.size // 4 * 4
    for i in range(0, whole, 4):
        a, b = (a ^ words[i]) * prime, (b ^ words[i + 1]) * prime
        c, d = (c ^ words[i + 2]) * prime, (d ^ words[i + 3]) * prime
    for i in range(whole, words.size):
        a = (a ^ words[i]) * prime
    return ((a * prime ^ b) * prime ^ c) * prime ^ d
