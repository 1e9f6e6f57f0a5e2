"""A run with actors: its learner, and the builder of its parts, with actors in other processes to fill the ring."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.actorq.broadcast import states_for
from shoal.actorq.chunks import steps_per_chunk
from shoal.actorq.collector import ActorCollector
from shoal.actorq.limiter import RateLimiter, check_pace
from shoal.actorq.player import Play
from shoal.actorq.system import ActorSystem, LocalSystem
from shoal.algorithms.base import BaseTeam
from shoal.errors import Diverged, UserError
from shoal.inference.engine import make_engine
from shoal.inference.policy import Policy
from shoal.quantization.export import from_team
from shoal.replay import Ring, can_sample
from shoal.replay.samplers import Limited
from shoal.training import builder
from shoal.training.builder import Parts, compile_loops
from shoal.training.config import TrainConfig
from shoal.training.evaluation import build_env
from shoal.training.learner import Learner

__all__ = ["build_parts", "compile_loops"]


def build_parts(config: TrainConfig) -> Parts:
    """The engine's parts for the copies of all actors, and what takes the place of its collector and learner."""
    together = dataclasses.replace(config, copies=config.copies * config.actors)
    parts = builder.build_parts(together, build_env(config, 1, config.seed, stagger=False))
    assert isinstance(parts.ring, Ring)
    policy = from_team(parts.team)
    play = chosen_play(config, policy)
    steps = steps_per_chunk(config.pull_every, config.copies, config.cluster is not None)
    capacity = parts.ring.capacity
    limiter = make_limiter(config, steps * config.copies, capacity)
    if (most := config.max_times_sampled) is not None:
        needed = config.batch * (1 if config.minibatch == "shared" else parts.env.spec.agents)
        if most * capacity < needed:
            raise UserError(
                f"An update draws {needed:,} transitions, but `max_times_sampled={most}` allows only "
                f"{most * capacity:,} draws from a ring of {capacity:,}: learning would never begin."
            )
        parts.sampler = Limited(most, parts.ring.copies, parts.ring.capacity_per_copy)
    if config.cluster is None:
        system: ActorSystem = LocalSystem(config, parts.env.spec, policy, play, steps)
    else:
        from shoal.actorq.cluster import ClusterSystem

        system = ClusterSystem(config, parts.env.spec, policy, play, steps)
    collector = ActorCollector(parts.env, parts.ring, system, limiter)
    team, config = parts.team, dataclasses.replace(config, update=parts.config.update)
    parts = dataclasses.replace(parts, config=config, collector=collector)
    return dataclasses.replace(parts, learner=ActorLearner(parts, collector, team))


def make_limiter(config: TrainConfig, chunk: int, capacity: int) -> RateLimiter:
    """Of the ratio that is set; with --max-times-sampled alone nobody waits for a ratio."""
    ratio, most = config.pace, config.max_times_sampled
    free = most is not None and config.samples_per_insert is None
    limit = None if free else most
    buffer = check_pace(ratio, config.error_buffer, config.batch, chunk, config.warmup, limit, capacity)
    first = 0 if config.lockstep else config.warmup  # in lock-step the learner catches up on the warm-up's updates
    return RateLimiter(ratio, first, math.inf if free else buffer)


def chosen_play(config: TrainConfig, policy: Policy) -> Play:
    """How the actors play; with engine auto, the one whose call is quickest here for their number of copies.

    Engines round differently, so that a run in lock-step, which is reproducible, has one that no timing decides.
    """
    name = config.actor_engine
    if name == "auto" and config.lockstep:
        name = "onnx"
    bits = config.broadcast_bits or (8 if config.actor_precision == "int8" else 32)
    if name == "auto":
        name = make_engine(policy.network(), "auto", config.actor_precision, batch=config.copies).name  # type: ignore[assignment]
    states = states_for(policy) if config.actor_bias_correction else 0
    return Play(name, config.actor_precision, bits, config.copies, states)


class ActorLearner(Learner):
    """A learner that is never waited for: actors play its last version while it makes the next."""

    def __init__(self, parts: Parts, collector: ActorCollector, team: BaseTeam) -> None:
        super().__init__(parts)
        self._team = team
        self.collector, self.limiter, self.system = collector, collector.limiter, collector.system
        count = sum(array.size for array in team.rollout_arrays())
        self._row = np.zeros(count + count % 2, np.float32)  # a multiple of 8 bytes

    def owes_update(self, samples: int) -> bool:
        """Whether the rate limiter lets it sample; what has come goes in first."""
        self.system.board.exploration = self._team.exploration
        if self.config.lockstep:
            return super().owes_update(samples) and self._draws_left()
        if self.collector.ready():
            return False
        if not self.limiter.may_sample(self.config.batch):
            return False
        self.collector.starved = not (can_sample(self.ring, self.sampler) and self._draws_left())
        return not self.collector.starved

    def _draws_left(self) -> bool:
        """Whether the transitions may be drawn often enough for one more update."""
        if not isinstance(self.sampler, Limited):
            return True
        minibatches = 1 if self.config.minibatch == "shared" else self.collector.env.spec.agents
        return self.sampler.left(self.ring) >= minibatches * self.config.batch

    def update(self, phase: Callable[[str], None]) -> None:
        """Update all agents once and publish the new version."""
        super().update(phase)
        self.limiter.samples += self.config.batch
        self.publish()

    def publish(self) -> None:
        """Hand the present policy to the quantizer."""
        self.system.board.exploration = self._team.exploration
        numbers = np.concatenate([array.ravel() for array in self._team.rollout_arrays()])
        if not np.isfinite(numbers).all():
            raise Diverged("The policy's weights are not numbers")
        self._row[: numbers.size] = numbers
        self.collector.updates = self.updates
        self.system.publish(self._row, self.updates)

    def state(self) -> tuple[dict[str, NDArray], dict[str, Any]]:
        """With it, how often every live transition was drawn, where that is limited."""
        arrays, counters = super().state()
        if isinstance(self.sampler, Limited):
            arrays["times_sampled"] = self.sampler.state(self.ring)
        return arrays, counters

    def load_state(self, arrays: dict[str, NDArray], counters: dict[str, Any]) -> None:
        super().load_state(arrays, counters)
        if isinstance(self.sampler, Limited):
            self.sampler.load_state(arrays["times_sampled"], self.ring)
        self.collector.updates = self.updates
