"""One file per algorithm; `make_team` builds the one that a configuration names."""

from typing import TYPE_CHECKING

from shoal.lazy import lazy

if TYPE_CHECKING:
    import torch

    from shoal.algorithms.config import LearnConfig
    from shoal.algorithms.d4pg import D4PG
    from shoal.algorithms.dqn import DQN
    from shoal.algorithms.maddpg import MADDPG
    from shoal.algorithms.masac import MASAC
    from shoal.algorithms.team import Team
    from shoal.envs.base import EnvSpec

__all__ = ["D4PG", "DQN", "MADDPG", "MASAC", "LearnConfig", "make_team"]

HOMES = {name: f"shoal.algorithms.{name.lower()}" for name in ("D4PG", "DQN", "MADDPG", "MASAC")}
__getattr__ = lazy("shoal.algorithms", {"LearnConfig": "shoal.algorithms.config", **HOMES})


def make_team(spec: "EnvSpec", config: "LearnConfig", seed: int, device: "torch.device") -> "Team":
    """A fresh team in torch for this world, if there is memory for it.

    Every torch network that Shoal trains, plays or exports is built here.
    """
    from shoal.algorithms.base import check_choices, check_team_fits

    check_choices(spec, config.algorithm)
    check_team_fits(spec, config)
    team: Team = __getattr__(config.algorithm.upper())(spec, config, seed, device)
    return team
