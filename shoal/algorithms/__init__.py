"""One file per algorithm; `make_team` builds the one a configuration names."""

from typing import TYPE_CHECKING

from shoal.lazy import lazy

if TYPE_CHECKING:
    from shoal.algorithms.config import LearnConfig
    from shoal.algorithms.maddpg import MADDPG
    from shoal.algorithms.masac import MASAC
    from shoal.algorithms.teams import make_team

__all__ = ["MADDPG", "MASAC", "LearnConfig", "make_team"]

__getattr__ = lazy(
    "shoal.algorithms",
    {
        "LearnConfig": "shoal.algorithms.config",
        "MADDPG": "shoal.algorithms.maddpg",
        "MASAC": "shoal.algorithms.masac",
        "make_team": "shoal.algorithms.teams",
    },
)
