"""A trained policy, wherever it comes from: a run folder, a Stable-Baselines3 zip, an exported ONNX file.

Start reading at `trained.py`: the interface. `loading.py` detects the kind of a path; each kind has its own file.
"""

from typing import TYPE_CHECKING

from shoal.lazy import lazy

if TYPE_CHECKING:
    from shoal.policies.loading import load
    from shoal.policies.trained import TrainedPolicy

__all__ = ["TrainedPolicy", "load"]

__getattr__ = lazy("shoal.policies", {"load": "shoal.policies.loading", "TrainedPolicy": "shoal.policies.trained"})
