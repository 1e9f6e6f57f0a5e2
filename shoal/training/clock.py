"""The phase clock: every moment of a run belongs to exactly one phase, so the phases add up to the whole.

The names are the papers'. "target Q" has three parts, told apart behind a colon.
"""

import time
from collections.abc import Callable, Mapping

PHASES = (
    "action selection",
    "environment",
    "replay insertion",
    "mini-batch sampling",
    "target Q",
    "Q loss",
    "P loss",
    "target update",
    "other",
)
UPDATE_ALL_TRAINERS = ("mini-batch sampling", "target Q", "Q loss", "P loss", "target update")


class PhaseClock:
    """Call it with the name of the phase that begins; what passed since the last call goes to the phase before.

    `wait` is called before every look at the time: a device that works by itself has to be waited for.
    """

    def __init__(self, wait: Callable[[], object] | None = None) -> None:
        self._wait = wait
        self.seconds: dict[str, float] = {}
        self._phase = "other"
        self._since = time.perf_counter()

    def start(self) -> None:
        """Leave out what passed since the last call."""
        self._since = time.perf_counter()

    def __call__(self, phase: str) -> None:
        """Begin a phase."""
        if self._wait is not None:
            self._wait()
        now = time.perf_counter()
        self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now

    @property
    def phase(self) -> str:
        """The phase that it is."""
        return self._phase

    def total(self) -> float:
        """Seconds since the clock started, those before a resume included."""
        self(self._phase)
        return sum(self.seconds.values())

    def by_phase(self) -> dict[str, float]:
        """Seconds of each of PHASES, the parts of "target Q" added up."""
        self(self._phase)
        return by_phase(self.seconds)


def by_phase(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each of PHASES, the parts of "target Q" added up."""
    whole = dict.fromkeys(PHASES, 0.0)
    for phase, passed in seconds.items():
        whole[phase.partition(":")[0]] += passed
    return whole
