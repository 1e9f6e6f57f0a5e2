"""From a configuration's algorithm to its team, if there is memory for it."""

from itertools import pairwise

import torch

from shoal.algorithms.config import LearnConfig
from shoal.algorithms.maddpg import MADDPG
from shoal.algorithms.masac import MASAC
from shoal.envs.base import EnvSpec
from shoal.memory import check_fits


def make_team(spec: EnvSpec, config: LearnConfig, seed: int, device: torch.device) -> MADDPG | MASAC:
    """A fresh team for this world; every network that Shoal trains, plays or exports is built here."""
    check_fits(
        f"A team of {spec.agents} agents with hidden layers of {_shown(config.hidden)} units",
        team_bytes(spec, config),
        lambda usable: "fewer agents or smaller hidden layers need less",
    )
    kind = MADDPG if config.algorithm == "maddpg" else MASAC
    return kind(spec, config, seed, device)


def team_bytes(spec: EnvSpec, config: LearnConfig) -> int:
    """What a team takes to be built: networks, targets, Adam's two moments, and layers before they are stacked."""
    return 4 * 5 * sum(network_weights(spec, config))


def network_weights(spec: EnvSpec, config: LearnConfig) -> tuple[int, int]:
    """Numbers in the actors and in the critics of all agents, targets not counted."""
    heads = 2 if config.algorithm == "masac" else 1
    joint = spec.agents * (spec.observation_size + spec.action_size)
    actor = _weights((spec.observation_size, *config.hidden, 2 * spec.action_size))
    return spec.agents * actor, spec.agents * heads * _weights((joint, *config.hidden, 1))


def _weights(layers: tuple[int, ...]) -> int:
    """Numbers in a network with these layers, inputs and outputs included."""
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(layers))


def _shown(hidden: tuple[int, ...]) -> str:
    """The widths, the first few of many."""
    return " × ".join(f"{width:,}" for width in hidden[:4]) + (" × …" if len(hidden) > 4 else "")
