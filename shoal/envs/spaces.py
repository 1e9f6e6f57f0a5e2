"""The spaces of third-party environments as flat float vectors: observations in, actions out; the spec of these.

Observations are flattened as `gymnasium.spaces.utils.flatten` does it: a Box and MultiBinary row by row, Discrete(n)
one-hot, MultiDiscrete as one one-hot vector per entry, the parts of Dict and Tuple one after the other.
Actions: Discrete(n) by the largest of n numbers; MultiDiscrete and MultiBinary by the largest of one number per
combination, or for many combinations by the largest number of each entry; Box of shape (k,) in its own units.
"""

import math
from collections import OrderedDict
from functools import reduce
from textwrap import shorten
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.spaces.utils import flatdim, flatten
from numpy.typing import NDArray

from shoal.envs.base import Array, EnvSpec
from shoal.errors import UserError

MOST_COMBINATIONS = 128  # of the entries of a MultiDiscrete or MultiBinary action that are one choice, not several
MASK = "action_mask"  # what PettingZoo and Gymnasium call it, in Dict observations and in infos


def spec_of(
    name: str,
    agents: list[Any],
    observation_spaces: list[Space],
    action_spaces: list[Space],
    episode_length: int | None,
    stated_length: int | None,
    masked: bool = False,
) -> EnvSpec:
    """The spec of an environment, from its agents and their spaces; `masked`: observations begin with a mask."""
    names = tuple(map(str, agents))
    observation_sizes = tuple(map(observation_size, observation_spaces, names, [name] * len(names)))
    sizes = tuple(map(action_size, action_spaces, names, [name] * len(names)))
    chooses = [is_choice(space) for space in action_spaces]
    choices = tuple(_blocks(space) if is_choice(space) else () for space in action_spaces)
    low = high = None
    if not all(chooses):
        low, high = (np.zeros((len(names), max(sizes)), np.float32) for _ in range(2))
        for i, space in enumerate(action_spaces):
            ends = (-1, 1) if chooses[i] else (space.low, space.high)  # type: ignore[attr-defined]
            low[i, : sizes[i]], high[i, : sizes[i]] = ends
    if masked:
        observation_sizes = tuple(seen + acted for seen, acted in zip(observation_sizes, sizes, strict=True))
    whole = not masked and all(isinstance(space, Discrete) and space.start == 0 for space in observation_spaces)
    single = not any(chooses) or (all(chooses) and all(len(own) == 1 for own in choices))
    return EnvSpec(
        name, names, observation_sizes, sizes, all(chooses), action_low=low, action_high=high,
        episode_length=episode_length, stated_length=stated_length,
        whole_numbers=whole and len(set(observation_sizes)) == 1,
        from_zero=all(isinstance(space, Box) or (isinstance(space, Discrete) and space.start == 0)
                      for space in action_spaces),
        choices=() if single else choices, masked=masked,
    )  # fmt: skip


def observation_size(space: Space[Any], agent: str, name: str) -> int:
    """The length of the vector that `encode` makes of this space; a `UserError` where there is none."""
    start = f"Agent '{agent}' of {name} has the observation space {_brief(space)}"
    for part in _parts(space):
        if not isinstance(part, Box | Discrete | MultiBinary | MultiDiscrete):
            supported = "Box, Discrete, MultiBinary and MultiDiscrete are supported, alone or in Dict and Tuple"
            raise UserError(f"{start}, but only {supported}.")
        if isinstance(part, Box) and len(part.shape) > 1 and part.dtype == np.uint8:  # bytes in rows and columns
            raise UserError(
                f"{start}, but training on images is not supported: train Atari games on their memory "
                '(`env_options` \'{"obs_type": "ram"}\'), or quantize a Stable-Baselines3 model that was trained on '
                "images (shoal quantize MODEL.zip --env ALE/Pong-v5)."
            )
    size = flatdim(space)
    if not size:
        raise UserError(f"{start}, which holds no numbers: there is nothing to see.")
    return size


def action_size(space: Space[Any], agent: str, name: str) -> int:
    """The length of the vector that `decode` takes for this space; a `UserError` where there is none."""
    start = f"Agent '{agent}' of {name} has the action space {_brief(space)}"
    if is_choice(space):
        return sum(_blocks(space))
    if not (isinstance(space, Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating)):
        supported = "Discrete, MultiDiscrete, MultiBinary and floating-point Box of shape (k,) are supported"
        raise UserError(f"{start}, but only {supported}.")
    if not space.is_bounded():
        raise UserError(f"{start}, but every action entry needs a finite lower and upper bound.")
    if not space.shape[0]:
        raise UserError(f"{start}, in which there is no action.")
    with np.errstate(over="ignore"):
        if not np.isfinite(space.high.astype(np.float32) - space.low.astype(np.float32)).all():
            raise UserError(f"{start}, too wide for float32.")
    return space.shape[0]


def encode(space: Space[Any], value: Any) -> Array | None:
    """The observation as a flat vector, or None where it is not of the form that its space promises."""
    if isinstance(space, Dict | Tuple):
        try:
            values = [value[key] for key in space.spaces] if isinstance(space, Dict) else list(value)
        except (KeyError, TypeError, IndexError):  # no such parts
            return None
        if len(values) != len(space.spaces):
            return None
        parts = [encode(part, inner) for part, inner in zip(_subspaces(space), values, strict=True)]
        whole = [part for part in parts if part is not None]
        return np.concatenate([np.zeros(0, np.float32), *whole]) if len(whole) == len(parts) else None
    if isinstance(space, Discrete):
        if not space.contains(value):
            return None
        return (np.arange(space.start, space.start + space.n) == value).astype(np.float32)
    if isinstance(space, MultiDiscrete):
        return np.asarray(flatten(space, np.asarray(value)), np.float32) if space.contains(value) else None
    try:
        with np.errstate(over="ignore"):  # infinity is refused by the caller
            array = np.asarray(value)
            if array.dtype.kind not in "biufO":  # complex numbers would lose a part, and text is none
                return None
            vector = array.astype(np.float32)
    except (TypeError, ValueError, RuntimeError):
        return None
    return vector.reshape(-1) if vector.shape == space.shape else None


def decode(space: Space[Any], vector: NDArray[np.floating]) -> Any:
    """What the environment is given for an action vector; entries behind the space's own length are padding."""
    if isinstance(space, Discrete):
        return space.start + vector[: space.n].argmax()
    if isinstance(space, MultiDiscrete | MultiBinary):
        sizes, blocks = _choices(space), _blocks(space)
        largest = [part.argmax() for part in np.split(vector[: sum(blocks)], np.cumsum(blocks)[:-1])]
        entries = np.array(largest if blocks == sizes else np.unravel_index(largest[0], sizes), space.dtype)
        return entries.reshape(space.shape) + getattr(space, "start", space.dtype.type(0))
    assert isinstance(space, Box)
    # Clipped in the space's own precision: a float32 bound may lie outside its float64 original.
    return vector[: space.shape[0]].astype(space.dtype).clip(space.low, space.high)


def is_choice(space: Space[Any]) -> bool:
    """Whether an action of this space is a choice, or a combination of choices."""
    return isinstance(space, Discrete | MultiDiscrete | MultiBinary)


def _choices(space: Space[Any]) -> tuple[int, ...]:
    """The number of choices of each entry; the last one changes fastest from combination to combination."""
    if isinstance(space, Discrete):
        return (int(space.n),)
    if isinstance(space, MultiDiscrete):
        return tuple(space.nvec.ravel().tolist())
    return (2,) * math.prod(space.shape or ())


def _blocks(space: Space[Any]) -> tuple[int, ...]:
    """Sizes of an action's choices: one choice of all combinations, or one per entry if there are too many."""
    sizes = _choices(space)
    combinations = math.prod(sizes)
    return sizes if combinations > MOST_COMBINATIONS else (combinations,)


def has_mask(observation_space: Space[Any], action_space: Space[Any]) -> bool:
    """Whether an agent's observation is a Dict that says which of its choices are legal."""
    return isinstance(observation_space, Dict) and MASK in observation_space.spaces and is_choice(action_space)


def without_mask(space: Space[Any]) -> Dict:
    """The observation space without its mask."""
    assert isinstance(space, Dict)
    return Dict(OrderedDict((key, part) for key, part in space.spaces.items() if key != MASK))


def legal_choices(space: Space[Any], mask: Any) -> Array | None:
    """A mask as zeros and ones for an action vector; None if it is not one number per choice.

    For several choices: their masks one after the other, or a tuple of masks as in Gymnasium.
    """
    sizes, blocks = _choices(space), _blocks(space)
    try:
        flat = np.concatenate([np.ravel(part) for part in (mask if isinstance(mask, tuple) else [mask])])
    except (TypeError, ValueError):
        return None
    if flat.shape != (sum(sizes),) or flat.dtype.kind not in "biuf":
        return None
    legal = (flat != 0).astype(np.float32)
    if blocks == sizes:
        return legal
    return np.asarray(reduce(np.multiply.outer, np.split(legal, np.cumsum(sizes)[:-1]))).ravel()


def _subspaces(space: Dict | Tuple) -> list[Space[Any]]:
    """The parts of a Dict or a Tuple, in the order in which Gymnasium flattens them."""
    return list(space.spaces.values() if isinstance(space, Dict) else space.spaces)


def _parts(space: Space[Any]) -> list[Space[Any]]:
    """The spaces that a space is made of; itself where it is not composed."""
    if not isinstance(space, Dict | Tuple):
        return [space]
    return [inner for part in _subspaces(space) for inner in _parts(part)]


def _brief(space: Space[Any]) -> str:
    """The space on one line."""
    return shorten(str(space), 120, placeholder=" …")
