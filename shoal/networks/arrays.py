"""Tensors as numpy arrays, and back."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, NDArray]:
    """Tensors as numpy arrays on the CPU: views of those that are there."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def to_tensors(arrays: Mapping[str, NDArray]) -> dict[str, Tensor]:
    """Arrays as tensors with their own memory."""
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
