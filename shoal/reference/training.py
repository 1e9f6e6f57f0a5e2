"""A run of the reference: the engine's loop over the reference's world, team and replay."""

import dataclasses

import torch

from shoal.algorithms.config import option
from shoal.errors import UserError, counted
from shoal.reference.replay import ListSampler, Replays
from shoal.reference.team import ReferenceTeam
from shoal.reference.world import make_world
from shoal.training.config import TrainConfig
from shoal.training.loop import Training
from shoal.training.setup import check_update_memory

ONLY = {
    "storage": "float32",
    "others": "ring",
    "learn_entropy": False,
    "include_center": False,
}
"""Settings that the reference has in one way only."""


class ReferenceTraining(Training):
    """A run in memory, as the papers measured it: one mpe2 world, a mini-batch an agent, one agent after the other."""

    @staticmethod
    def compile(config: TrainConfig) -> None:
        """Nothing: it is plain Python."""

    def build(self, device: torch.device) -> None:
        """The reference's world, team, lists and sampler."""
        self.config = config = fitted(self.config)
        self.env = make_world(config)
        spec = self.env.spec
        reserved = check_update_memory(dataclasses.replace(config, minibatch="shared"), spec)  # one at a time
        self.team = ReferenceTeam(spec, config, config.seed, device)
        self.sampler = ListSampler(config.sampler, config.neighbors)
        self.ring = Replays(spec, config.capacity, self.most_samples, reserved)
        if self.sampler.needs > config.capacity:
            raise UserError(
                f"--sampler {config.sampler} needs {counted(self.sampler.needs, 'transition')}, "
                f"but --capacity {config.capacity} holds fewer."
            )


def fitted(config: TrainConfig) -> TrainConfig:
    """The configuration with what the reference fixes: one copy and independent mini-batches.

    The engine's defaults give way silently; what was asked for and cannot be is refused with a sentence.
    """
    if config.copies not in (1, TrainConfig.copies):
        raise UserError(
            f"--copies is {config.copies}, but the reference implementation plays in one copy; leave it out."
        )
    if config.gumbel == "straight-through":
        raise UserError("--gumbel is 'straight-through', but the reference implementation draws soft samples only.")
    for name, only in ONLY.items():
        if (value := getattr(config, name)) != only:
            raise UserError(f"{option(name)} is {value}, but the reference implementation has {only} only.")
    return dataclasses.replace(config, copies=1, minibatch="independent")
