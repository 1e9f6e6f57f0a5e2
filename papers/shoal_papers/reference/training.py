"""The reference's builder: its world, team and replay lists, for the same loop as the engine's."""

import dataclasses

from shoal.errors import UserError, counted
from shoal.training.builder import Parts
from shoal.training.config import TrainConfig
from shoal.training.resources import check_update_memory, make_device, most_samples
from shoal_papers.reference.replay import ListSampler, Replays
from shoal_papers.reference.team import ReferenceTeam
from shoal_papers.reference.world import make_world

ONLY = {"storage": "float32", "others": "ring", "learn_entropy": False, "include_center": False}
"""Settings that are fixed in the reference."""


def compile_loops(config: TrainConfig) -> None:
    """Does nothing: the reference is plain Python."""


def build_parts(config: TrainConfig) -> Parts:
    """Build the run as the papers measured it: one mpe2 world, one mini-batch per agent, one agent after the other."""
    config = fitted(config)
    env = make_world(config)
    reserved = check_update_memory(dataclasses.replace(config, minibatch="shared"), env.spec)  # one copy
    team = ReferenceTeam(env.spec, config, config.seed, make_device(config.device))
    sampler = ListSampler(config.sampler, config.neighbors)
    ring = Replays(env.spec, config.capacity, most_samples(config, env.spec), reserved)
    if sampler.needs > config.capacity:
        raise UserError(
            f"`sampler={config.sampler}` needs {counted(sampler.needs, 'transition')}, "
            f"but `capacity={config.capacity}` holds fewer."
        )
    return Parts(config, env, team, ring, sampler)


def fitted(config: TrainConfig) -> TrainConfig:
    """The configuration with what the reference fixes: one copy and independent mini-batches.

    The engine's defaults are replaced silently; unsupported settings that the user asked for are refused.
    """
    if config.copies not in (1, TrainConfig.copies):
        raise UserError(
            f"`copies` is {config.copies}, but the reference implementation plays in one copy; leave it out."
        )
    if config.gumbel == "straight-through":
        raise UserError("`gumbel` is 'straight-through', but the reference implementation draws soft samples only.")
    for name, only in ONLY.items():
        if (value := getattr(config, name)) != only:
            raise UserError(f"`{name}` is {value}, but the reference implementation supports only {only}.")
    return dataclasses.replace(config, copies=1, minibatch="independent")
