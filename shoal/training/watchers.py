"""What keeps an eye on a run: compilation, warm-up, sharing, other programs, an environment that hangs, divergence.

Each has a sentence for the user, at most once or now and then.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.core import event

from shoal.envs.base import EnvSpec
from shoal.errors import counted
from shoal.runs.interrupt import Interrupt
from shoal.system.control_groups import read_text
from shoal.training.config import TrainConfig
from shoal.waiting import BackgroundThread

if TYPE_CHECKING:
    from shoal.training.loop import Training

LOOK_EVERY = 5.0  # seconds; shorter intervals are not informative
MUCH = 0.3  # share of the time spent waiting that is worth a message
BUSY = (1, 2, 3, 6, 7, 8)  # columns of a CPU in /proc/stat: user, nice, system, interrupts (two), stolen by the host
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100  # per second
STALL_CHECK = 0.5  # seconds between checks whether a step has returned
LONG_STEP = 30.0  # seconds in one step after which the user is told
GIVE_UP = 300.0  # seconds in one step after which a run that was asked to stop does so without saving
LARGE_RETURN = 1e6  # a larger return explains why training diverges: networks and losses are in float32


class CompilationReport(BackgroundThread, event.Listener):
    """Tells the user why they wait if compiling takes long, then its progress, and when it is done.

    How many functions are missing from the cache is not known before they are called, so no total is given.
    """

    def __init__(self, tell: Callable[[str], None], first: float = 2.0, every: float = 5.0) -> None:
        super().__init__()
        self._tell, self._first, self._every = tell, first, every
        self._since, self._reported = time.monotonic(), False
        self._begun = self._compiled = 0

    def on_start(self, event: Any) -> None:
        self._begun += 1

    def on_end(self, event: Any) -> None:
        self._compiled += 1

    def __enter__(self) -> "CompilationReport":
        event.register("numba:compile", self)
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        event.unregister("numba:compile", self)
        if self._reported:
            self._tell(f"Compiled {counted(self._compiled, 'function')} in {time.monotonic() - self._since:.0f} s.")

    def _run(self) -> None:
        while not self._over.wait(self._every if self._reported else self._first):
            if self._reported:
                self._tell(f"Compiled {counted(self._compiled, 'function')} so far.")
            elif self._begun:  # not where loading takes long
                self._tell("Compiling native code for this machine; it is cached for later runs.")
                self._reported = True


class WarmUp:
    """Says once, as soon as it is clear, that a run ends before its first update, without having learned."""

    def __init__(self, config: TrainConfig, spec: EnvSpec) -> None:
        self._episodes, self._copies = config.episodes, config.copies * max(1, config.actors)
        paced = config.actors and not config.lockstep  # by the rate limiter
        self._needed = config.warmup if paced else max(config.warmup, config.samples_per_update)
        self._most = None  # samples of the run, where episodes have a length
        if spec.episode_length is not None:  # with staggered first episodes, which are not counted
            self._most = (config.episodes + 2 * self._copies) * spec.episode_length
        elif spec.stated_length is not None:
            self._most = (config.episodes - 1 + self._copies) * spec.stated_length
        self._said = False

    def before(self) -> str | None:
        """A sentence before the start, if no episode can be long enough."""
        return None if self._most is None else self._sentence(self._most, "ends after at most", "will be")

    def so_far(self, episodes: int, samples: int) -> str | None:
        """A sentence if episodes turn out to be too short; so far no update was made.

        Episodes under way count among the samples, so that early on too many are expected rather than too few.
        """
        if self._said or episodes < min(2 * self._copies, self._episodes / 2):
            return None
        over = episodes >= self._episodes
        expected = samples if over else samples * self._episodes // episodes
        return self._sentence(expected, "ended after" if over else "ends after about", "was" if over else "will be")

    def _sentence(self, samples: int, ends: str, was: str) -> str | None:
        if samples >= self._needed:
            return None
        self._said = True
        return (
            f"Nothing {was} learned: the run {ends} {samples:,} samples, before the warm-up of "
            f"{self._needed:,}; set `warmup` or `episodes`."
        )


def nothing_shared(config: TrainConfig, spec: EnvSpec) -> str | None:
    """A sentence for users who asked for shared networks where no two agents are alike."""
    if config.share == "none" or len(set(spec.kinds)) < spec.agents:
        return None
    alike = "no two agents have the same group, observations and actions" if spec.agents > 1 else "there is one agent"
    return f"`share={config.share}` changes nothing in {spec.name}: {alike}."


def entropy_of_masked(config: TrainConfig, spec: EnvSpec) -> str | None:
    """A sentence for users whose temperatures may grow without end, because masks leave few choices."""
    if not (spec.masked and config.learn_entropy and config.target_entropy is None):
        return None
    return (
        f"`target_entropy` is half of the maximum of all choices, but {spec.name} forbids some: where few are legal, "
        "set a lower one, or the temperature grows without end."
    )


class Contention:
    """Notices that a run mostly waits for other programs.

    Linux reports how long each thread was ready but had to wait, and how busy each CPU was; nothing is noticed where
    the system does not.
    """

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
        advice = "; `threads=1` waits less" if threads > 1 else ""
        return f"Other programs keep the CPUs busy: this run waits for them {share:.0%} of the time{advice}."

    def _waiting(self) -> dict[str, float]:
        """Seconds that each thread was ready but waiting."""
        seconds = {}
        for status in (self._root / "proc/self/task").glob("*/schedstat"):
            try:
                seconds[status.parent.name] = int(status.read_text().split()[1]) / 1e9
            except (OSError, ValueError, IndexError):  # the thread has ended
                continue
        return seconds

    def _of_others(self) -> float:
        """Seconds that this process's CPUs were busy, less its own and those of the processes that it has started."""
        usable = {f"cpu{number}" for number in (os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ())}
        lines = (line.split() for line in read_text(self._root / "proc/stat").splitlines())
        try:
            busy = [int(words[column]) for words in lines if words and words[0] in usable for column in BUSY]
        except (ValueError, IndexError):
            return 0.0
        ended = os.times()
        taken = time.process_time() + ended.children_user + ended.children_system
        return sum(busy) / TICKS - taken - self._of_children("self")

    def _of_children(self, process: str) -> float:
        """Seconds of CPU time that the running children of a process have taken, and theirs."""
        seconds = 0.0
        for listed in (self._root / "proc" / process / "task").glob("*/children"):
            for child in read_text(listed).split():
                fields = read_text(self._root / "proc" / child / "stat").rpartition(")")[2].split()
                seconds += sum(map(int, fields[11:15])) / TICKS  # user and system, its own and of children that ended
                seconds += self._of_children(child)
        return seconds


class StallWatch(BackgroundThread):
    """A thread that reports a step that takes long, and ends it if the run was asked to stop."""

    def __init__(self, training: "Training", tell: Callable[[str], None], interrupt: Interrupt) -> None:
        super().__init__()
        self._training, self._tell, self._interrupt = training, tell, interrupt

    def _run(self) -> None:
        samples, since, reported = -1, time.monotonic(), False
        while not self._over.wait(STALL_CHECK):
            if self._training.clock.phase != "environment" or self._training.samples != samples:
                samples, since, reported = self._training.samples, time.monotonic(), False
                continue
            stuck = time.monotonic() - since
            if stuck > LONG_STEP and not reported:
                reported = True
                self._tell(f"{self._place()} for {LONG_STEP:.0f} s; Ctrl-C twice ends the run, `resume` continues it.")
            if stuck > GIVE_UP and self._interrupt.signal is not None:
                self._tell(f"{self._place()} for {GIVE_UP:.0f} s: stopping without saving; `resume` continues the run.")
                self._interrupt.abandon()
                return

    def _place(self) -> str:
        """What does not return; a worker that is waited for is named."""
        worker = getattr(self._training.env, "awaited", "")
        return f"{self._training.config.env} has not returned from step(){f' in {worker}' if worker else ''}"


def remedy(training: "Training") -> str:
    """What may help a training that has diverged: smaller rewards where returns are very large, else smaller steps."""
    returns = [abs(value) for episode in training.last for value in episode.agents]
    returns += np.abs(training.collector.state()[0].get("returns.sums", np.zeros(1))).ravel().tolist()
    if (largest := max(returns)) > LARGE_RETURN:
        return f"returns are as large as {largest:.1e}: scale down the rewards of {training.config.env}"
    return f"a smaller `learning_rate` than {training.config.learning_rate} may help"
