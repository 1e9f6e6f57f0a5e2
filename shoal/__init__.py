"""Shoal trains teams of agents, and shows where every second and every bit goes."""

from typing import TYPE_CHECKING

from shoal.lazy import lazy

if TYPE_CHECKING:
    from shoal.api import train
    from shoal.envs import make_env
    from shoal.policies import load
    from shoal.training.callbacks import Callback
    from shoal.training.config import TrainConfig

__version__ = "0.2.0"
__all__ = ["Callback", "TrainConfig", "load", "make_env", "train"]

__getattr__ = lazy(
    "shoal",
    {
        "Callback": "shoal.training.callbacks",
        "TrainConfig": "shoal.training.config",
        "load": "shoal.policies",
        "make_env": "shoal.envs",
        "train": "shoal.api",
    },
)


def __dir__() -> list[str]:
    """The public names, loaded or not, for completion in a notebook."""
    return sorted({*globals(), *__all__})
