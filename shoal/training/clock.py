"""The phase clock: every moment of a run belongs to exactly one phase, so the phases add up to the whole.

The names are the papers'. "target Q" has three parts, told apart behind a colon.
"""

import time

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
    """Call it with the name of the phase that begins; what passed since the last call goes to the phase before."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._phase = "other"
        self._since = time.perf_counter()

    def __call__(self, phase: str) -> None:
        """Begin a phase."""
        now = time.perf_counter()
        self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now

    def total(self) -> float:
        """Seconds since the clock started, those before a resume included."""
        self(self._phase)
        return sum(self.seconds.values())

    def by_phase(self) -> dict[str, float]:
        """Seconds of each of PHASES, the parts of "target Q" added up."""
        self(self._phase)
        whole = dict.fromkeys(PHASES, 0.0)
        for phase, seconds in self.seconds.items():
            whole[phase.partition(":")[0]] += seconds
        return whole
