"""Engines that run a policy without torch: plain numpy, a numba kernel, ONNX Runtime."""

from typing import TYPE_CHECKING

from shoal.lazy import lazy

if TYPE_CHECKING:
    from shoal.inference.engine import Engine, make_engine
    from shoal.inference.explore import Explorer
    from shoal.inference.grid import Grid
    from shoal.inference.layers import Conv2d, Linear, Quantized
    from shoal.inference.policy import Exploration, Head, Normaliser, Policy

__all__ = [
    "Conv2d", "Engine", "Exploration", "Explorer", "Grid", "Head", "Linear", "Normaliser", "Policy", "Quantized",
    "make_engine",
]  # fmt: skip

__getattr__ = lazy(
    "shoal.inference",
    dict.fromkeys(("Engine", "make_engine"), "shoal.inference.engine")
    | dict.fromkeys(("Conv2d", "Linear", "Quantized"), "shoal.inference.layers")
    | dict.fromkeys(("Exploration", "Head", "Normaliser", "Policy"), "shoal.inference.policy")
    | {"Explorer": "shoal.inference.explore", "Grid": "shoal.inference.grid"},
)
