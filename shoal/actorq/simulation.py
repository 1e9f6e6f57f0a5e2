"""A discrete-event model of a run with actors: what more actors, fewer bits, a faster learner or a network would give.

    times = ServiceTimes(learner_ms=3, step_ms=0.8, pull_bytes=8.7e6)
    outcome = simulate(Settings(times, actors=64))
    print(outcome.env_steps_per_second, outcome.bottleneck)

The processes are those of a real run (`training.py`, `quantizer.py`, `actor.py`) with the rate limiter itself between
them; what they do takes service times that were measured or given. Events are whole chunks, pulls and updates, so that
a thousand actors take seconds. docs/simulate.md says what the model leaves out.
"""

import math
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, fields

import numpy as np
import simpy

from shoal.actorq import actor, collector, quantizer
from shoal.actorq.chunks import steps_per_chunk
from shoal.actorq.limiter import RateLimiter, check_pace
from shoal.actorq.resources import Cores, Link, Wakeup, then
from shoal.actorq.simulation_options import ServiceTimes, SimulationOptions
from shoal.actorq.system import SLOTS
from shoal.errors import check_range, whole_number
from shoal.seeding import stream

LEAST_CHUNKS, LEAST_UPDATES = 300, 20  # chunks and updates of the part that counts, at least
MOST_CHUNKS, MOST_UPDATES = 100_000, 1_000_000
"""Chunks after which the limiter's band counts as used up, and updates after which a simulation ends in any case."""
SATURATED = 0.95  # share of the time in use from which a link is what limits
Process = Generator[simpy.Event, None, None]


@dataclass(frozen=True)
class Settings(SimulationOptions):
    """What is simulated."""

    times: ServiceTimes
    actors: int = 4

    @property
    def networked(self) -> bool:
        """Whether the actors are on machines of their own."""
        return self.network_mbit is not None or self.latency_ms > 0

    @property
    def chunk_steps(self) -> int:
        """Steps of a chunk, as in a real run."""
        return steps_per_chunk(self.pull_every, self.copies)

    def check(self) -> None:
        """Raise a `UserError` for the first setting that cannot be; its name is that of the field."""
        for field in fields(self.times):
            check_range(field.name, getattr(self.times, field.name), 0, 1e12)
        for name in ("learner_ms", "step_ms"):
            check_range(name, getattr(self.times, name), 1e-6)
        for name, high in (("actors", 10_000), ("copies", 2**20), ("batch", 2**24), ("pull_every", 2**40)):
            whole_number(name, getattr(self, name), 1, high)
        whole_number("warmup", self.warmup, 1, 10**6)
        check_range("samples_per_insert", self.samples_per_insert, 1e-3, 1e3)
        check_range("variation", self.variation, 0, 10)
        check_range("latency_ms", self.latency_ms, 0, 1e7)
        if self.cores is not None:
            whole_number("cores", self.cores, 1)
        if self.network_mbit is not None:
            check_range("network_mbit", self.network_mbit, 1e-6)

    def limiter(self) -> RateLimiter:
        """The rate limiter of such a run; a `UserError` where learner and actors would wait for each other."""
        chunk = self.chunk_steps * self.copies
        buffer = check_pace(
            self.samples_per_insert, self.error_buffer, self.batch, chunk, self.warmup, None, max(self.warmup, 10**9)
        )
        return RateLimiter(self.samples_per_insert, self.warmup, buffer)


@dataclass(frozen=True)
class Outcome:
    """What the simulated system did in its steady state."""

    env_steps_per_second: float  # transitions that were taken in, of all actors
    updates_per_second: float
    learner_stall: float  # share of the time in which the learner waited for experience
    actor_stall: float  # share of the actors' time in which they waited for the learner to take in their chunks
    pull_share: float  # share of the actors' time that pulls took: the network, copying and loading
    lag_mean: float  # age in updates of the version that played a transition, when that is taken in
    lag_p95: float
    down_bytes_per_second: float  # versions that actors pulled
    up_bytes_per_second: float  # experience that they sent
    samples_per_insert: float  # achieved
    bottleneck: str  # learner, actors or network
    seconds: float  # simulated seconds of the part that counts


def simulate(settings: Settings) -> Outcome:
    """Simulate a run until it is steady, and long enough beyond; the same settings give the same outcome."""
    settings.check()
    run = _Run(settings)
    run.env.run(until=run.finished)
    return run.outcome()


class _Run:
    """The processes of a simulated run and what they share."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.times = settings, settings.times
        self.limiter = settings.limiter()
        self.env = simpy.Environment()
        self.chunk = settings.chunk_steps * settings.copies  # transitions
        beside = Cores(self.env, settings.cores, settings.times.contention)
        self.learner_cores, self.actor_cores = beside, Cores(self.env, None) if settings.networked else beside
        self.down, self.up = (Link(self.env, settings.network_mbit) for _ in range(2))
        self.latency = settings.latency_ms / 1e3
        self.updates = self.broadcast = 0  # versions: the learner's, and the newest that actors can pull
        self.taken = self.pulls = 0  # chunks, and versions that actors pulled
        self.queues: list[deque[list[tuple[int, int]]]] = [deque() for _ in range(settings.actors)]
        self.turns: deque[int] = deque()  # actors that have a chunk waiting, in the order in which the learner takes
        self.slots = [0] * settings.actors  # chunks of each that are not taken in yet
        self.arrived, self.published = Wakeup(self.env), Wakeup(self.env)
        self.freed = [Wakeup(self.env) for _ in range(settings.actors)]
        self.lags: list[tuple[int, int]] = []  # in updates, and of how many steps
        self.spent = dict.fromkeys(("learner stall", "actor stall", "pulling"), 0.0)
        self.finished = self.env.event()
        self._rng = stream(settings.seed, "simulation")
        self._settled, self._enough = self._lengths()
        self._begun: dict[str, float] = {}
        for process in (self.learner(), self.quantizer(), *map(self.actor, range(settings.actors))):
            self.env.process(process)

    # ---- the processes ---------------------------------------------------------------------------------------------

    def learner(self) -> Process:
        """What has come goes in first; else an update if the limiter lets it; else wait for a chunk."""
        while not self.finished.triggered:
            if self.turns and self.limiter.may_insert(self.chunk):
                yield self.learner_cores.work(self._time(self.times.insert_ms * self.chunk))
                self._take(self.turns.popleft())
            elif self.limiter.may_sample(self.settings.batch):
                yield self.learner_cores.work(self._time(self.times.learner_ms))
                self.limiter.samples += self.settings.batch
                self.updates += 1
                self.published.wake()
                self._look_at_the_end()
            else:
                yield from self._wait("learner stall", self.arrived, collector.PAUSE)

    def quantizer(self) -> Process:
        """The newest version; those that come while it is at work are passed over."""
        while True:
            while self.broadcast == self.updates:
                yield self.published.next
                yield self.env.timeout(self._rng.uniform(0, quantizer.PAUSE))
            version = self.updates
            yield self.learner_cores.work(self._time(self.times.quantize_ms))
            self.broadcast = version

    def actor(self, k: int) -> Process:
        """Chunk after chunk, with the newest version after every `pull_every` steps; starts are spread over a pull."""
        every, each = self.settings.pull_every, self.settings.chunk_steps
        left, version = int(self._rng.integers(1, every + 1)), 0  # until the next pull
        while True:
            while self.slots[k] >= SLOTS:
                yield from self._wait("actor stall", self.freed[k], actor.PAUSE)
            played: list[tuple[int, int]] = []
            todo = each
            while todo:
                if left == 0:
                    version, left = (yield from self._pull(version)), every
                steps = min(todo, left)
                yield self.actor_cores.work(self._time(self.times.step_ms * steps))
                played.append((version, steps))
                todo, left = todo - steps, left - steps
            self._send(k, played)

    def _pull(self, current: int) -> Generator[simpy.Event, None, int]:
        """The newest version, asked for and waited for; nothing travels if it is the one that the actor has."""
        start = self.env.now
        if self.latency:
            yield self.env.timeout(self.latency)
        version = self.broadcast
        if version > current and self.settings.networked:
            yield self.down.carry(self.times.pull_bytes)
        if self.latency:
            yield self.env.timeout(self.latency)
        if version > current:
            self.pulls += 1
            yield self.actor_cores.work(self._time(self.times.pull_ms + self.times.load_ms))
        self.spent["pulling"] += self.env.now - start
        return version

    def _send(self, k: int, played: list[tuple[int, int]]) -> None:
        """A chunk on its way to the learner; the actor does not wait for it to arrive."""
        self.slots[k] += 1
        if not self.settings.networked:
            self._arrive(k, played)
            return
        carried = self.up.carry(self.times.transition_bytes * self.chunk, self.latency)
        then(carried, lambda: self._arrive(k, played))

    def _arrive(self, k: int, played: list[tuple[int, int]]) -> None:
        if not self.queues[k]:
            self.turns.append(k)
        self.queues[k].append(played)
        self.arrived.wake()

    def _take(self, k: int) -> None:
        """A chunk of actor k is in the ring."""
        played = self.queues[k].popleft()
        if self.queues[k]:
            self.turns.append(k)
        self.limiter.inserts += self.chunk
        self.taken += 1
        self.lags += [(self.updates - version, steps) for version, steps in played]
        if self.latency:
            then(self.env.timeout(self.latency), lambda: self._free(k))
        else:
            self._free(k)
        self._look_at_the_end()

    def _free(self, k: int) -> None:
        self.slots[k] -= 1
        self.freed[k].wake()

    def _wait(self, what: str, wakeup: Wakeup, pause: float) -> Process:
        """Wait for something that is polled every `pause` seconds."""
        start = self.env.now
        yield wakeup.next
        yield self.env.timeout(self._rng.uniform(0, pause))
        self.spent[what] += self.env.now - start

    def _time(self, milliseconds: float) -> float:
        """Seconds of one service, which vary around their mean."""
        if not milliseconds or not self.settings.variation:
            return milliseconds / 1e3
        shape = 1 / self.settings.variation**2
        return float(self._rng.gamma(shape, milliseconds / 1e3 / shape))

    # ---- from when to when, and what it gives ----------------------------------------------------------------------

    def _lengths(self) -> tuple[int, int]:
        """Chunks until the system is steady, and chunks to count from then on.

        Steady: the limiter's band is used up, all queues are as full as they get and every actor has pulled, across a
        network often enough that the queue of pulls is as long as it gets.
        """
        settings, limiter = self.settings, self.limiter
        rounds = 2 if settings.networked else 1
        pulls = math.ceil(settings.pull_every / settings.chunk_steps)
        first = limiter.min_size + (limiter.high - limiter.low) / limiter.ratio
        each = SLOTS + 1 + rounds * min(pulls, 100)
        settled = min(math.ceil(first / self.chunk), MOST_CHUNKS) + settings.actors * each
        updates = math.ceil(LEAST_UPDATES * settings.batch / (limiter.ratio * self.chunk))
        each = min(max(2 * pulls, 16), 200)
        return settled, max(LEAST_CHUNKS, min(updates, 100 * LEAST_CHUNKS), settings.actors * each)

    def _counts(self) -> dict[str, float]:
        """Everything that the outcome is made of, so far."""
        counts = {"chunks": self.taken, "updates": self.updates, "pulls": self.pulls, "lags": len(self.lags)}
        return {"seconds": self.env.now, **counts, "down": self.down.busy, "up": self.up.busy, **self.spent}

    def _look_at_the_end(self) -> None:
        if not self._begun and (self.taken >= self._settled or self.updates >= MOST_UPDATES // 2):
            self._begun = self._counts()
        enough = self._begun and self.taken >= self._begun["chunks"] + self._enough
        if (enough or self.updates >= MOST_UPDATES) and not self.finished.triggered:
            self.finished.succeed()

    def outcome(self) -> Outcome:
        """What happened since the system was steady."""
        settings = self.settings
        now = self._counts()
        counted = {name: now[name] - self._begun[name] for name in now}
        seconds, inserts = counted["seconds"], counted["chunks"] * self.chunk
        lags = np.array(self.lags[int(self._begun["lags"]) :] or [(0, 1)])
        lags, steps = lags[np.argsort(lags[:, 0])].T
        reached = np.cumsum(steps)
        actors = seconds * settings.actors
        learner = counted["learner stall"] / seconds
        waited, pulling = counted["actor stall"] / actors, counted["pulling"] / actors
        full = max(counted["down"], counted["up"]) / seconds
        side = "actors" if learner > waited else "learner"
        if settings.networked and (full >= SATURATED or (side == "actors" and pulling > 0.5)):
            side = "network"
        return Outcome(
            env_steps_per_second=inserts / seconds,
            updates_per_second=counted["updates"] / seconds,
            learner_stall=learner,
            actor_stall=waited,
            pull_share=pulling,
            lag_mean=float(np.average(lags, weights=steps)),
            lag_p95=float(lags[np.searchsorted(reached, 0.95 * reached[-1])]),
            down_bytes_per_second=counted["pulls"] * self.times.pull_bytes / seconds,
            up_bytes_per_second=inserts * self.times.transition_bytes / seconds,
            samples_per_insert=counted["updates"] * settings.batch / max(inserts, 1),
            bottleneck=side,
            seconds=seconds,
        )
