"""Detects CPU contention: Linux reports how long each thread was ready but had to wait."""

import time
from pathlib import Path

LOOK_EVERY = 5.0  # seconds; shorter intervals are not informative
MUCH = 0.3  # share of the time spent waiting that is worth a message


class Contention:
    """The time that this process's threads waited for a CPU; unknown where the system does not report it."""

    def __init__(self, root: Path = Path("/")) -> None:
        """`root` is the location of /proc."""
        self._tasks = root / "proc/self/task"
        self._told = False
        self._since, self._waited = time.perf_counter(), self._waiting()

    def sentence(self, threads: int) -> str | None:
        """A message, once, if the run has mostly waited since the last call, with advice."""
        passed = time.perf_counter() - self._since
        if self._told or passed < LOOK_EVERY:
            return None
        share = min(1.0, max(0.0, (waited := self._waiting()) - self._waited) / passed)
        self._since, self._waited = self._since + passed, waited
        if share < MUCH:
            return None
        self._told = True
        advice = "; --threads 1 waits less" if threads > 1 else ""
        return f"Other programs keep the CPUs busy: this run waits for them {share:.0%} of the time{advice}."

    def _waiting(self) -> float:
        """Seconds that all threads together were ready but waiting."""
        total = 0
        for status in self._tasks.glob("*/schedstat"):
            try:
                total += int(status.read_text().split()[1])
            except (OSError, ValueError, IndexError):  # the thread has ended
                continue
        return total / 1e9
