"""Heartbeats of actors on a Ray cluster: Ray notices one that is dead, but not one that is stopped."""

from typing import Any

GROUP = {"heartbeat": 1}
"""Ray's concurrency group for `alive`, which is answered by a thread of its own while another call runs."""
SILENT = 30.0
"""Seconds without an answer after which an actor counts as dead: more than a network or a long import takes."""


class Heartbeat:
    """Asks one actor for a heartbeat, over and over."""

    def __init__(self, ray: Any, handle: Any) -> None:
        self._ray, self._handle = ray, handle
        self._begun, self._quiet = False, 0.0
        self._ask()

    def silent(self, passed: float) -> bool:
        """Whether it has not answered for long, after so many more seconds.

        One that has never answered still waits for a CPU, and is waited for.
        """
        self._quiet += passed
        if self._ray.wait([self._asked], timeout=0)[0]:
            self._begun, self._quiet = True, 0.0
            self._ask()  # where it died, this is answered at once; what it was called for tells why
        return self._begun and self._quiet >= SILENT

    def _ask(self) -> None:
        self._asked = self._handle.alive.options(concurrency_group=next(iter(GROUP))).remote()


def silence() -> str:
    """What is said of such an actor."""
    return f"it sent no heartbeat for {SILENT:g} seconds"
