"""Shoal trains teams of agents, and shows where every second and every bit goes."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.envs import make_env as make_env
    from shoal.training import TrainConfig as TrainConfig
    from shoal.training import train as train

__version__ = "0.1.0"
__all__ = ["TrainConfig", "make_env", "train"]

_HOME = {"make_env": "shoal.envs", "TrainConfig": "shoal.training", "train": "shoal.training"}


def __getattr__(name: str) -> Any:
    """Load the public names when they are first used: `import shoal` alone stays fast."""
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'shoal' has no attribute '{name}'")
