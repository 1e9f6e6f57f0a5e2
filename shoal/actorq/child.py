"""A child process of a run with actors: its heartbeat is on the board."""

import os
import threading

from shoal.actorq.board import Board
from shoal.system.child import Channel, Child, Message

TICK = 0.2
"""Seconds between heartbeats."""
SILENT, STARTING = 5.0, 120.0
"""Seconds without one after which a process counts as dead; before its first it has much to import and to compile."""


class WatchedChild(Child):
    """A child process whose heartbeats its parent counts."""

    def __init__(self, module: str, spec: Message, descriptors: list[int], index: int, ticks: int) -> None:
        """Start it; `index` is its place on the board, where there were so many ticks before."""
        super().__init__(module, {**spec, "index": index}, "use fewer --actors", descriptors=descriptors)
        self._ticks, self._begun, self._quiet = ticks, False, 0.0

    def alive(self, ticks: int, passed: float) -> bool:
        """Whether its heartbeat is recent, given its count so far and the seconds since the last call."""
        self._begun |= ticks != self._ticks
        self._quiet = 0.0 if ticks != self._ticks else self._quiet + passed
        self._ticks = ticks
        return self.process.poll() is None and self._quiet < (SILENT if self._begun else STARTING)


def live(board: Board, index: int, parent: Channel) -> None:
    """In a child: send heartbeats from now on, and end when the parent is gone."""

    def beat() -> None:
        while True:
            board.add(index, "ticks")
            if parent.connection.poll(TICK):  # closed: a parent sends nothing more
                os._exit(0)

    threading.Thread(target=beat, daemon=True).start()
