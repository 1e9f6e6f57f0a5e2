"""Whether other programs keep a run from the processors: Linux says how long each thread was ready and had to wait."""

import time
from pathlib import Path

LOOK_EVERY = 5.0  # seconds; a shorter time says little
MUCH = 0.3  # of the time spent waiting is worth a sentence


class Contention:
    """The time that this process's threads waited for a processor; nothing is known where the system does not tell."""

    def __init__(self, root: Path = Path("/")) -> None:
        """`root` is where /proc is looked for."""
        self._tasks = root / "proc/self/task"
        self._told = False
        self._since, self._waited = time.perf_counter(), self._waiting()

    def sentence(self, threads: int) -> str | None:
        """What to tell the person, once: that the run has mostly waited since the last look, and what would help."""
        passed = time.perf_counter() - self._since
        if self._told or passed < LOOK_EVERY:
            return None
        share = min(1.0, max(0.0, (waited := self._waiting()) - self._waited) / passed)
        self._since, self._waited = self._since + passed, waited
        if share < MUCH:
            return None
        self._told = True
        advice = "; --threads 1 waits less" if threads > 1 else ""
        return f"Other programs keep the processors busy: this run waits for them {share:.0%} of the time{advice}."

    def _waiting(self) -> float:
        """Seconds that all threads together were ready to run, but did not."""
        total = 0
        for status in self._tasks.glob("*/schedstat"):
            try:
                total += int(status.read_text().split()[1])
            except (OSError, ValueError, IndexError):  # the thread has ended
                continue
        return total / 1e9
