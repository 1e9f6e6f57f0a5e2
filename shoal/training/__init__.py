"""The loop, the phase clock, evaluation, checkpoints and logs."""

from typing import TYPE_CHECKING

from shoal.lazy import lazy

if TYPE_CHECKING:
    from shoal.training.config import TrainConfig
    from shoal.training.loop import train
    from shoal.training.result import TrainResult

__all__ = ["TrainConfig", "TrainResult", "train"]

__getattr__ = lazy(
    "shoal.training",
    {"TrainConfig": "shoal.training.config", "TrainResult": "shoal.training.result", "train": "shoal.training.loop"},
)
