"""From a configuration's algorithm to its team."""

import torch

from shoal.algorithms.config import LearnConfig
from shoal.algorithms.maddpg import MADDPG
from shoal.algorithms.masac import MASAC
from shoal.envs.base import EnvSpec


def make_team(spec: EnvSpec, config: LearnConfig, seed: int, device: torch.device) -> MADDPG | MASAC:
    """A fresh team for this world."""
    kind = MADDPG if config.algorithm == "maddpg" else MASAC
    return kind(spec, config, seed, device)
