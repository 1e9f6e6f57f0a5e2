"""A trained policy, wherever it comes from: a run folder, a Stable-Baselines3 zip, an exported ONNX file.

Start reading at `trained.py`: the interface. `loading.py` detects the kind of a path.
"""

from typing import TYPE_CHECKING

from shoal.lazy import lazy

if TYPE_CHECKING:
    from shoal.policies.baselines_model import read_zip, to_policy
    from shoal.policies.loading import load
    from shoal.policies.trained import TrainedPolicy

__all__ = ["TrainedPolicy", "load", "read_zip", "to_policy"]

__getattr__ = lazy(
    "shoal.policies",
    {"TrainedPolicy": "shoal.policies.trained", "load": "shoal.policies.loading"}
    | dict.fromkeys(("read_zip", "to_policy"), "shoal.policies.baselines_model"),
)
