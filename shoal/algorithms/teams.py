"""From a configuration's algorithm to its team in torch, if there is memory for it."""

import torch

from shoal.algorithms.base import check_choices
from shoal.algorithms.config import LearnConfig
from shoal.algorithms.d4pg import D4PG
from shoal.algorithms.dqn import DQN
from shoal.algorithms.maddpg import MADDPG
from shoal.algorithms.masac import MASAC
from shoal.algorithms.sizes import check_team_fits
from shoal.algorithms.team import Team
from shoal.envs.base import EnvSpec

TEAMS: dict[str, type[Team]] = {"maddpg": MADDPG, "masac": MASAC, "d4pg": D4PG, "dqn": DQN}


def make_team(spec: EnvSpec, config: LearnConfig, seed: int, device: torch.device) -> Team:
    """A fresh team for this world; every torch network that Shoal trains, plays or exports is built here."""
    check_choices(spec, config.algorithm)
    check_team_fits(spec, config)
    return TEAMS[config.algorithm](spec, config, seed, device)
