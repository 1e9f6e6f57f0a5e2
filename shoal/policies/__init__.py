"""A trained policy, wherever it comes from: a run folder, a Stable-Baselines3 zip, an exported ONNX file.

Start reading at `trained.py`: the interface, and `load`.
"""

from typing import TYPE_CHECKING

from shoal.lazy import lazy

if TYPE_CHECKING:
    from shoal.policies.baselines_model import read_zip, to_policy
    from shoal.policies.trained import TrainedPolicy, load

__all__ = ["TrainedPolicy", "load", "read_zip", "to_policy"]

__getattr__ = lazy(
    "shoal.policies",
    dict.fromkeys(("TrainedPolicy", "load"), "shoal.policies.trained")
    | dict.fromkeys(("read_zip", "to_policy"), "shoal.policies.baselines_model"),
)
