"""Detects CPU contention: Linux reports how long each thread was ready but had to wait, and how busy each CPU was."""

import os
import time
from pathlib import Path

from shoal.system.control_groups import read_text

LOOK_EVERY = 5.0  # seconds; shorter intervals are not informative
MUCH = 0.3  # share of the time spent waiting that is worth a message
BUSY = (1, 2, 3, 6, 7, 8)  # columns of a CPU in /proc/stat: user, nice, system, interrupts (two), stolen by the host
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100  # per second


class Contention:
    """The time that one of this process's threads waited for other programs; 0 where the system does not report it."""

    def __init__(self, root: Path = Path("/")) -> None:
        """`root` is the location of /proc."""
        self._root = root
        self._told = False
        self._since, self._waited, self._others = time.perf_counter(), self._waiting(), self._of_others()

    def sentence(self, threads: int) -> str | None:
        """A message, once, if the run has mostly waited for other programs since the last call, with advice."""
        passed = time.perf_counter() - self._since
        if self._told or passed < LOOK_EVERY:
            return None
        waiting, others = self._waiting(), self._of_others()
        longest = max((now - self._waited.get(thread, 0.0) for thread, now in waiting.items()), default=0.0)
        # the run's own threads wait for each other, too: for other programs at most as long as those ran
        share = min(1.0, max(0.0, min(longest, others - self._others) / passed))
        self._since, self._waited, self._others = self._since + passed, waiting, others
        if share < MUCH:
            return None
        self._told = True
        advice = "; --threads 1 waits less" if threads > 1 else ""
        return f"Other programs keep the CPUs busy: this run waits for them {share:.0%} of the time{advice}."

    def _waiting(self) -> dict[str, float]:
        """Seconds that each thread was ready but waiting."""
        found = {}
        for status in (self._root / "proc/self/task").glob("*/schedstat"):
            try:
                found[status.parent.name] = int(status.read_text().split()[1]) / 1e9
            except (OSError, ValueError, IndexError):  # the thread has ended
                continue
        return found

    def _of_others(self) -> float:
        """Seconds that this process's CPUs were busy, less its own and those of the processes that it has started."""
        numbers = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
        usable = {f"cpu{number}" for number in numbers}
        lines = (line.split() for line in read_text(self._root / "proc/stat").splitlines())
        try:
            busy = [int(words[column]) for words in lines if words and words[0] in usable for column in BUSY]
        except (ValueError, IndexError):
            return 0.0
        ended = os.times()
        own = time.process_time() + ended.children_user + ended.children_system
        return sum(busy) / TICKS - own - self._of_children("self")

    def _of_children(self, process: str) -> float:
        """Seconds of CPU time that the running children of a process have taken, and theirs."""
        seconds = 0.0
        for listed in (self._root / "proc" / process / "task").glob("*/children"):
            for child in read_text(listed).split():
                fields = read_text(self._root / "proc" / child / "stat").rpartition(")")[2].split()
                seconds += sum(map(int, fields[11:15])) / TICKS  # user and system, its own and of children that ended
                seconds += self._of_children(child)
        return seconds
