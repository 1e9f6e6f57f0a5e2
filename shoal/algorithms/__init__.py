"""One file per algorithm; `make_team` builds the one a configuration names."""

from typing import TYPE_CHECKING

from shoal.lazy import lazy

if TYPE_CHECKING:
    from shoal.algorithms.config import LearnConfig
    from shoal.algorithms.d4pg import D4PG
    from shoal.algorithms.dqn import DQN
    from shoal.algorithms.maddpg import MADDPG
    from shoal.algorithms.masac import MASAC
    from shoal.algorithms.teams import make_team

__all__ = ["D4PG", "DQN", "MADDPG", "MASAC", "LearnConfig", "make_team"]

__getattr__ = lazy(
    "shoal.algorithms",
    {
        "LearnConfig": "shoal.algorithms.config",
        "D4PG": "shoal.algorithms.d4pg",
        "DQN": "shoal.algorithms.dqn",
        "MADDPG": "shoal.algorithms.maddpg",
        "MASAC": "shoal.algorithms.masac",
        "make_team": "shoal.algorithms.teams",
    },
)
