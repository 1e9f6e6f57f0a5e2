"""The learner of a run with actors: updates as often as the rate limiter lets it, and publishes every version."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.actorq.collector import ActorCollector
from shoal.algorithms.base import BaseTeam
from shoal.errors import Diverged
from shoal.replay import can_sample
from shoal.replay.limited import Limited
from shoal.training.learner import Learner
from shoal.training.parts import Parts


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
        """Continue from what `state` returned."""
        super().load_state(arrays, counters)
        if isinstance(self.sampler, Limited):
            self.sampler.load_state(arrays["times_sampled"], self.ring)
        self.collector.updates = self.updates
