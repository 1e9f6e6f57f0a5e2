"""The phase clock: every moment of a run belongs to exactly one phase, so the phases add up to the whole.

The names are the papers'. "target Q" has three parts, named after a colon.
"""

import time
from collections.abc import Callable, Mapping

UPDATE_ALL_TRAINERS = ("mini-batch sampling", "target Q", "Q loss", "P loss", "target update")
PHASES = ("action selection", "environment", "replay insertion", *UPDATE_ALL_TRAINERS, "other")


class PhaseClock:
    """Call it with the name of the phase that begins; the time since the last call counts for the previous phase.

    `wait` is called before every reading of the time, to synchronise with an asynchronous device.
    """

    def __init__(self, wait: Callable[[], object] | None = None) -> None:
        self._wait = wait
        self.seconds: dict[str, float] = {}
        self.phase = "other"
        """The current phase."""
        self._since = time.perf_counter()

    def start(self) -> None:
        """Do not count the time since the last call."""
        self._since = time.perf_counter()

    def __call__(self, phase: str) -> None:
        """Begin a phase."""
        if self._wait is not None:
            self._wait()
        now = time.perf_counter()
        self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + now - self._since
        self.phase, self._since = phase, now

    def divide(self, shares: Mapping[str, float]) -> None:
        """Divide the time of the present phase, so far, among several that ran side by side; `shares` add up to 1."""
        began = self.phase
        before = self.seconds.get(began, 0.0)
        self(began)
        passed = self.seconds[began] - before
        self.seconds[began] = before
        for phase, share in shares.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + share * passed

    def total(self) -> float:
        """Seconds since the clock started, including those before a resume."""
        self(self.phase)
        return sum(self.seconds.values())

    def by_phase(self) -> dict[str, float]:
        """Seconds of each of PHASES, the parts of "target Q" summed."""
        self(self.phase)
        return by_phase(self.seconds)


def by_phase(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each of PHASES, the parts of "target Q" summed."""
    whole = dict.fromkeys(PHASES, 0.0)
    for phase, passed in seconds.items():
        whole[phase.partition(":")[0]] += passed
    return whole
