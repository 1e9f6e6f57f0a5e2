"""Heartbeats: how a process is noticed that is not dead, but stopped or frozen."""

import math
import os
import threading
from typing import Any

from shoal.actorq.board import Board
from shoal.system.child import Channel, Child, Message

TICK = 0.2  # seconds between heartbeats on one machine
SILENT, STARTING = 5.0, 120.0
"""Seconds without one after which a process counts as dead; before its first it has much to import and to compile."""
GROUP = "heartbeat"
"""Ray's concurrency group for `alive`, which is answered by a thread of its own while another call runs."""
SILENT_ON_RAY = 30.0
"""Seconds without an answer after which an actor on a cluster counts as dead: more than networks and imports take."""


class Silence:
    """The seconds since the last heartbeat of one process."""

    def __init__(self, starting: float) -> None:
        """`starting`: the most seconds before the first."""
        self._starting, self._begun, self._seconds = starting, False, 0.0

    def too_long(self, heard: bool, passed: float, most: float) -> bool:
        """Whether there was none for too long, after so many more seconds."""
        self._begun |= heard
        self._seconds = 0.0 if heard else self._seconds + passed
        return self._seconds >= (most if self._begun else self._starting)


class WatchedChild(Child):
    """A child process that counts its heartbeats on the board."""

    def __init__(self, module: str, spec: Message, descriptors: list[int], index: int, ticks: int) -> None:
        """Start it; `index` is its place on the board, where there were so many ticks before."""
        super().__init__(module, {**spec, "index": index}, "use fewer `actors`", descriptors=descriptors)
        self._ticks, self._silence = ticks, Silence(STARTING)

    def alive(self, ticks: int, passed: float) -> bool:
        """Whether its heartbeat is recent, given its count so far and the seconds since the last call."""
        heard, self._ticks = ticks != self._ticks, ticks
        return not self._silence.too_long(heard, passed, SILENT) and self.process.poll() is None


def live(board: Board, index: int, parent: Channel) -> None:
    """In a child: send heartbeats from now on, and end when the parent is gone."""

    def beat() -> None:
        while True:
            board.counts["ticks"][index] += 1
            if parent.connection.poll(TICK):  # closed: a parent sends nothing more
                os._exit(0)

    threading.Thread(target=beat, daemon=True).start()


class RayHeartbeat:
    """Asks one actor of a Ray cluster for a heartbeat, over and over; Ray itself notices only those that are dead."""

    def __init__(self, ray: Any, handle: Any) -> None:
        self._ray = ray
        self._silence = Silence(math.inf)  # one that has never answered still waits for a CPU
        self._ask = handle.alive.options(concurrency_group=GROUP).remote
        self._asked = self._ask()

    def silent(self, passed: float) -> bool:
        """Whether it has not answered for too long, after so many more seconds."""
        heard = bool(self._ray.wait([self._asked], timeout=0)[0])
        if heard:
            self._asked = self._ask()  # where it died, this is answered at once; what it was called for tells why
        return self._silence.too_long(heard, passed, SILENT_ON_RAY)
