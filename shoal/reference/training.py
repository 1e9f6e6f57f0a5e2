"""The reference's builder: its world, team and lists, for the loop that the engine has, too."""

import dataclasses

import torch

from shoal.algorithms.config import option
from shoal.errors import UserError, counted
from shoal.reference.replay import ListSampler, Replays
from shoal.reference.team import ReferenceTeam
from shoal.reference.world import make_world
from shoal.training.config import TrainConfig
from shoal.training.parts import Parts
from shoal.training.setup import check_update_memory, most_samples

ONLY = {
    "storage": "float32",
    "others": "ring",
    "learn_entropy": False,
    "include_center": False,
}
"""Settings that the reference has in one way only."""


def compile_loops(config: TrainConfig) -> None:
    """Nothing: the reference is plain Python."""


def build_parts(config: TrainConfig, device: torch.device) -> Parts:
    """As the papers measured it: one mpe2 world, a mini-batch per agent, one agent after the other."""
    config = fitted(config)
    env = make_world(config)
    reserved = check_update_memory(dataclasses.replace(config, minibatch="shared"), env.spec)  # one at a time
    team = ReferenceTeam(env.spec, config, config.seed, device)
    sampler = ListSampler(config.sampler, config.neighbors)
    ring = Replays(env.spec, config.capacity, most_samples(config, env.spec), reserved)
    if sampler.needs > config.capacity:
        raise UserError(
            f"--sampler {config.sampler} needs {counted(sampler.needs, 'transition')}, "
            f"but --capacity {config.capacity} holds fewer."
        )
    return Parts(config, env, team, ring, sampler)


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
