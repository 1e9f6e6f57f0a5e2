"""One file per algorithm; `make_team` builds the one that a configuration names."""

from typing import TYPE_CHECKING, cast

from shoal.algorithms.config import json_object
from shoal.errors import UserError
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

__all__ = ["D4PG", "DQN", "MADDPG", "MASAC", "LearnConfig", "Team", "make_team"]

HOMES = {name: f"shoal.algorithms.{name.lower()}" for name in ("D4PG", "DQN", "MADDPG", "MASAC")}
__getattr__ = lazy(
    "shoal.algorithms", {"LearnConfig": "shoal.algorithms.config", "Team": "shoal.algorithms.team", **HOMES}
)


def make_team(spec: "EnvSpec", config: "LearnConfig", seed: int, device: "torch.device") -> "Team":
    """A fresh team in torch for this world, if there is memory for it.

    Every torch network that Shoal trains, plays or exports is built here.
    """
    from shoal.algorithms.base import check_choices, check_team_fits

    kind = algorithm_class(config.algorithm)
    check_choices(spec, base_algorithm(kind))
    check_team_fits(spec, config)
    return kind(spec, config, seed, device, **json_object("algorithm_options", config.algorithm_options))


def algorithm_class(name: str) -> "type[Team]":
    """The class of a built-in algorithm, or of `MODULE:CLASS`, which is imported."""
    from shoal.algorithms.team import Team
    from shoal.plugins import load_class

    if ":" not in name:
        return cast(type[Team], __getattr__(name.upper()))
    kind = load_class("algorithm", name)
    if not (isinstance(kind, type) and issubclass(kind, Team)):
        raise UserError(f"`algorithm` is {name}, but must be a subclass of shoal.algorithms.Team or of an algorithm.")
    return kind


def base_algorithm(kind: "type[Team]") -> str:
    """The built-in algorithm that a class is or derives from; empty if there is none."""
    return next((base.__name__.lower() for base in kind.__mro__ if HOMES.get(base.__name__) == base.__module__), "")
