"""Learning, separate from collecting: draw mini-batches and update all agents as often as is due."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.base import Arrays
from shoal.errors import Diverged
from shoal.replay import can_sample
from shoal.seeding import stream
from shoal.training.builder import Parts


class Learner:
    """A team that learns from a ring, regardless of who fills it."""

    def __init__(self, parts: Parts) -> None:
        self.config, self.team, self.ring = parts.config, parts.team, parts.ring
        self.sampler, self.precision = parts.sampler, parts.precision
        self.rng = stream(self.config.seed, "sampling")
        self.updates = 0
        self.losses: Arrays = {}  # sums over the updates since `forget_losses`, each (N,)
        self.loss_count = 0

    def owes_update(self, samples: int) -> bool:
        """Whether an update is due: one per so many samples, none before the warm-up."""
        owed = samples // self.config.samples_per_update
        return samples >= self.config.warmup and self.updates < owed and can_sample(self.ring, self.sampler)

    def update(self, phase: Callable[[str], None]) -> None:
        """Update all agents once; `phase` is called with each phase that begins."""
        losses = self.team.update(self.ring, self.sampler, self.rng, phase)
        phase("other")
        self.updates += 1
        self.loss_count += 1
        for name, loss in losses.items():
            self.losses[name] = self.losses[name] + loss if name in self.losses else loss

    def publish(self) -> None:
        """Nobody else plays its policies."""

    def mean_losses(self) -> dict[str, float]:
        """Each loss, averaged over all agents and the updates since `forget_losses`; `Diverged` if not finite."""
        means = {name: float(total.mean()) / self.loss_count for name, total in self.losses.items()}
        for name, value in means.items():
            if not np.isfinite(value):
                raise Diverged(f"The {name} loss is {value}")
        return means

    def forget_losses(self) -> None:
        """Restart the means."""
        self.losses, self.loss_count = {}, 0

    def state(self) -> tuple[dict[str, NDArray], dict[str, Any]]:
        """Its state as arrays and counters; the team and the ring have their own."""
        sums = {f"losses.{name}": array for name, array in self.losses.items()}
        generator = self.rng.bit_generator.state
        return sums, {"updates": self.updates, "loss_count": self.loss_count, "sampling": generator}

    def load_state(self, arrays: dict[str, NDArray], counters: dict[str, Any]) -> None:
        prefix = "losses."
        self.losses = {name.removeprefix(prefix): sums for name, sums in arrays.items() if name.startswith(prefix)}
        self.updates, self.loss_count = counters["updates"], counters["loss_count"]
        self.rng.bit_generator.state = counters["sampling"]
