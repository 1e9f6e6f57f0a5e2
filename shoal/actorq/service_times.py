"""Measures what a running system of actors and a learner does in some seconds, and the service times behind it.

`shoal simulate actorq --measure` and the study actorq-model feed the simulation with these.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.actorq.collector import ActorCollector
from shoal.actorq.simulation import ServiceTimes
from shoal.actorq.system import ACTORS, QUANTIZER, ActorSystem, LocalSystem
from shoal.errors import UserError
from shoal.system.processors import usable_processors
from shoal.training.config import TrainConfig
from shoal.training.loop import Training, implementation

FIRST = 100  # steps that an actor plays before a measurement starts
MEASURED_RATIO, MEASURED_PULLS = 0.5, 100
"""Samples per insert and steps between pulls for measuring service times: both sides have enough to do."""
TURNS = 3  # how often the parts of a measurement take turns
PATIENCE = 90.0  # seconds to wait for the updates and pulls to measure


@dataclass(frozen=True)
class Observed:
    """What a running system did in some seconds; seconds of actors are sums over all of them.

    Processor seconds (`_cpu`) are those of all actors, the quantizer, the learner's process and the whole machine;
    `update_cpu` and `insert_cpu` are the learner's for updating and for taking in chunks. NaN where the system does not
    report them, 0 for actors on a cluster.
    """

    actors: int
    engine: str
    """The actors'."""
    seconds: float
    samples: float
    """Transitions that were taken in."""
    updates: float
    lags: list[int]
    """In updates, of the last transitions."""
    steps: float
    """That the actors played."""
    act: float
    pull: float
    load: float
    wait: float
    pulls: float
    pulled_bytes: float
    quantized: float
    """Versions that were broadcast."""
    quantize: float
    update_cpu: float
    insert_cpu: float
    learner_wait: float
    actors_delay: float
    """Seconds in which actors were ready to run, but had no processor; 0 if this system does not tell."""
    actors_cpu: float
    quantizer_cpu: float
    learner_cpu: float
    machine_cpu: float
    bottleneck: str
    transition_bytes: float

    @property
    def ran(self) -> float:
        """Share of its busy time in which an actor did not have to wait for a processor."""
        return max(0.01, 1 - self.actors_delay / (self.seconds * self.actors - self.wait))

    @property
    def others(self) -> float:
        """Share of this process's processors that other programs used; 0 if this system does not tell."""
        others = self.machine_cpu - self.learner_cpu - self.quantizer_cpu - self.actors_cpu
        return 0.0 if math.isnan(others) else max(0.0, others) / (self.seconds * usable_processors())

    @property
    def step_seconds(self) -> float:
        """Of a step on a processor of its own: acting, the environment, and writing both into the chunk."""
        return self.ran * (self.seconds * self.actors - self.wait - self.pull - self.load) / self.steps


def observe(config: TrainConfig, seconds: float, first: int, updates: int) -> Observed:
    """Run a system, and count for some seconds what it does, after `first` steps of every actor and so many updates."""
    with _running(config, first, updates) as training:
        return _observed(training, seconds)


def measure(config: TrainConfig, seconds: float, samples_per_insert: float = MEASURED_RATIO) -> ServiceTimes:
    """The service times of a task and a kind of actor: of one actor, of the learner, and of both at once.

    No side waits for a ratio. First the learner only inserts what the actor plays; then it learns as fast as it can
    beside the actor; then it learns while the actor waits. What both lose beside each other is the contention. The
    three parts take turns, because the speed of a shared machine varies.
    """
    fixed: dict[str, Any] = {"actors": 1, "warmup": max(300, config.batch), "pull_every": MEASURED_PULLS, "threads": 1}
    fixed |= {"samples_per_insert": samples_per_insert, "update_every": None, "capacity": 20_000, "episodes": 10**7}
    config = replace(config, **fixed, error_buffer=1e9).checked()
    part = seconds / 3 / TURNS
    playing, both, learning = [], [], []
    with _running(config, FIRST, updates=2) as training:
        queue = _parts(training)[1].queues[0]
        for _ in range(TURNS):
            playing.append(_observed(training, part, {"steps": FIRST, "samples": 1}, learn=False))
            both.append(_observed(training, part, {"updates": 2, "pulls": 2, "quantized": 1}))
            _play(training, lambda: queue.waiting >= queue.slots, take=False)
            learning.append(_observed(training, part, {"updates": 2}, take=False))
    return service_times(*map(together, (playing, both, learning)))


def together(parts: Sequence[Observed]) -> Observed:
    """Several parts of one run as one."""
    kept = {"actors", "engine", "lags", "bottleneck", "transition_bytes"}
    sums = {field.name for field in fields(Observed)} - kept
    return replace(parts[-1], **{name: sum(getattr(part, name) for part in parts) for name in sums})


def service_times(playing: Observed, both: Observed, learning: Observed) -> ServiceTimes:
    """The service times of a simulation from the three parts of `measure`."""
    update, slower_update = (part.update_cpu / part.updates for part in (learning, both))
    step, slower_step = (part.step_seconds for part in (playing, both))
    actor_share, learner_share = (1 - wait / both.seconds for wait in (both.wait / both.actors, both.learner_wait))
    losses = ((slower_update / update - 1) / actor_share, (slower_step / step - 1) / learner_share)
    contention = max(0.0, statistics.fmean(losses))
    beside = 1e3 * both.ran / (1 + contention)
    inserted = playing.insert_cpu + both.insert_cpu
    return ServiceTimes(
        learner_ms=1e3 * update,
        step_ms=1e3 * step,
        insert_ms=1e3 * inserted / (playing.samples + both.samples),
        pull_ms=beside * both.pull / both.pulls,
        load_ms=beside * both.load / both.pulls,
        quantize_ms=beside * both.quantize / both.quantized,
        pull_bytes=both.pulled_bytes / both.pulls,
        transition_bytes=both.transition_bytes,
        contention=contention,
    )


@contextmanager
def _running(config: TrainConfig, first: int, updates: int) -> Iterator[Training]:
    """A system that has begun: its actors have played some steps, and its learner has made some updates."""
    implementation(config).compile_loops(config)  # now, not in the middle of an update
    training = Training(config)
    collector, system = _parts(training)
    training.learner.publish()
    collector.begin()
    try:
        begun = time.perf_counter()

        def ready() -> bool:
            if time.perf_counter() - begun > PATIENCE:
                raise UserError(f"In {PATIENCE:.0f} s there were too few steps and updates to measure them.")
            return training.updates >= updates and bool(np.all(system.board.counts["steps"][ACTORS] >= first))

        _play(training, ready)
        yield training
    finally:
        collector.close()
        training.env.close()


def _observed(training: Training, seconds: float, least: dict[str, int] | None = None, **how: bool) -> Observed:
    """What happens in some seconds, or in as many more as it takes to see the `least` counts; `how`: see `_play`."""
    before = _counts(training)

    def done() -> bool:
        passed = time.perf_counter() - before["seconds"]
        if passed < seconds:  # most calls end here, between two updates
            return False
        if passed > PATIENCE:
            raise UserError(f"In {PATIENCE:.0f} s there were too few updates and pulls to measure them.")
        now = _counts(training)
        return all(now[name] - before[name] >= count for name, count in (least or {}).items())

    spent = _play(training, done, **how)
    counted: dict[str, Any] = {name: now - before[name] for name, now in _counts(training).items()}
    collector, system = _parts(training)
    return Observed(
        **counted,
        **spent,
        actors=training.config.actors,
        engine=system.play.engine,
        lags=list(collector.lags),
        bottleneck=collector.bottleneck()[0],
        transition_bytes=system.layout.nbytes / (system.layout.steps * system.layout.copies),
    )


def _play(training: Training, done: Callable[[], bool], learn: bool = True, take: bool = True) -> dict[str, float]:
    """The loop of training without log and checkpoints; returns the processor time of its parts.

    Without `learn` it only takes in what comes; without `take` it only learns.
    """
    spent = {"update_cpu": 0.0, "insert_cpu": 0.0}
    while not done():
        while learn and (training.owes_update() or not take) and not done():
            start = time.thread_time()
            training.update()
            spent["update_cpu"] += time.thread_time() - start
        if take:
            start, samples = time.thread_time(), training.samples
            training.step()
            if training.samples > samples:  # else it waited
                spent["insert_cpu"] += time.thread_time() - start
    return spent


def _parts(training: Training) -> tuple[ActorCollector, ActorSystem]:
    """The collector of such a run, and its processes."""
    assert isinstance(training.collector, ActorCollector)
    return training.collector, training.collector.system


def _counts(training: Training) -> dict[str, float]:
    """What has happened so far, under the names of `Observed`."""
    collector, system = _parts(training)
    counts, seconds = system.board.counts, system.board.seconds
    posts = system.posts if isinstance(system, LocalSystem) else []
    pids = [post.child.process.pid for post in posts if post.child is not None]
    used = [_processor_seconds(f"{pid}/stat", (11, 12)) for pid in pids]  # user, system
    return {
        "seconds": time.perf_counter(),
        "samples": training.samples,
        "updates": training.updates,
        "steps": int(counts["steps"][ACTORS].sum()),
        "pulls": int(counts["pulls"][ACTORS].sum()),
        "pulled_bytes": int(counts["bytes"][ACTORS].sum()),
        **{name: float(seconds[name][ACTORS].sum()) for name in ("act", "pull", "load", "wait")},
        "quantized": int(counts["steps"][QUANTIZER]),
        "quantize": float(seconds["act"][QUANTIZER]),
        "learner_wait": collector.waited,
        "learner_cpu": time.process_time(),
        "machine_cpu": _processor_seconds("stat", (1, 2, 3, 6, 7, 8)),  # all but idle and waiting, stolen time included
        "quantizer_cpu": sum(used[:1]),
        "actors_cpu": sum(used[ACTORS]),
        "actors_delay": sum(map(_delay_seconds, pids[ACTORS])),
    }


def _processor_seconds(file: str, fields: Sequence[int]) -> float:
    """Processor time so far, the sum of these fields of a file in /proc; NaN where it does not tell."""
    try:
        words = Path("/proc", file).read_text().rpartition(")")[2].split()  # the name of a process may have spaces
    except OSError:
        return math.nan
    return sum(int(words[k]) for k in fields) / os.sysconf("SC_CLK_TCK")


def _delay_seconds(pid: int) -> float:
    """Time in which a process was ready to run, but had no processor; 0 where /proc does not tell."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
