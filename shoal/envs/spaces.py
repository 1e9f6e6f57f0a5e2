"""The spaces of third-party environments as flat float vectors: observations in, actions out.

Observations: Box of shape (k,) as it is, MultiBinary(k) as zeros and ones, Discrete(n) one-hot.
Actions: Discrete(n) by the largest of n numbers, Box of shape (k,) in its own units.
"""

from textwrap import shorten
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, Space
from numpy.typing import NDArray

from shoal.envs.base import Array
from shoal.errors import UserError


def observation_size(space: Space[Any], agent: str, name: str) -> int:
    """The length of the vector that `encode` makes of this space; a `UserError` where there is none."""
    if isinstance(space, Discrete):
        return int(space.n)
    if isinstance(space, Box | MultiBinary) and len(space.shape) == 1:
        return space.shape[0]
    raise UserError(
        f"Agent '{agent}' of {name} has the observation space {_brief(space)}, but only flat vectors are supported: "
        "Box of shape (k,), MultiBinary(k) or Discrete(n)."
    )


def action_size(space: Space[Any], agent: str, name: str) -> int:
    """The length of the vector that `decode` takes for this space; a `UserError` where there is none."""
    if isinstance(space, Discrete):
        return int(space.n)
    if not (isinstance(space, Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating)):
        raise UserError(
            f"Agent '{agent}' of {name} has the action space {_brief(space)}, but only Discrete(n) and "
            "floating-point Box of shape (k,) are supported."
        )
    if not space.is_bounded():
        raise UserError(
            f"Agent '{agent}' of {name} has the action space {_brief(space)}, but every action entry needs a finite "
            "lower and upper bound."
        )
    return space.shape[0]


def encode(space: Space[Any], value: Any) -> Array | None:
    """The observation as a flat vector, or None where it is not of the form that its space promises."""
    if isinstance(space, Discrete):
        if not space.contains(value):
            return None
        return (np.arange(space.start, space.start + space.n) == value).astype(np.float32)
    vector = np.asarray(value, np.float32)
    return vector if vector.shape == space.shape else None


def decode(space: Space[Any], vector: NDArray[np.floating]) -> Any:
    """What the environment is given for an action vector; entries behind the space's own length are padding."""
    if isinstance(space, Discrete):
        return space.start + vector[: space.n].argmax()
    assert isinstance(space, Box)
    # Clipped in the space's own precision: a float32 bound may lie outside its float64 original.
    return vector[: space.shape[0]].astype(space.dtype).clip(space.low, space.high)


def _brief(space: Space[Any]) -> str:
    """The space on one line."""
    return shorten(str(space), 120, placeholder=" …")
