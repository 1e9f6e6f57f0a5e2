"""world.json in a run folder: the agents, sizes and bounds of the world, and who trained in it.

With it a run's networks can be built without making its world, whose code may be missing or not trusted.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from shoal.envs.base import EnvSpec
from shoal.errors import UserError
from shoal.runs import disk
from shoal.runs.signature import is_signed, sign
from shoal.training.config import TrainConfig
from shoal.trust import untrusted

WORLD = "world.json"
BOUNDS = ("action_low", "action_high")


def world_json(config: TrainConfig, spec: EnvSpec, folder: Path) -> str:
    """The text of world.json for a run that is trained here; worlds that need no trust are not signed."""
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(EnvSpec)}
    fields |= {name: None if fields[name] is None else fields[name].tolist() for name in BOUNDS}
    named = {"env": config.env, "env_options": config.env_options}
    signature = sign(folder, config.code) if any(untrusted(*each) for each in config.code) else ""
    return json.dumps(disk.sealed({**named, "spec": fields, "signature": signature}), indent=2) + "\n"


def stored_spec(config: TrainConfig, folder: Path, warn: Callable[[str], None]) -> EnvSpec | None:
    """The description of a run's world; None if it was not stored, or is damaged (then `warn` is called)."""
    if not (folder / WORLD).exists():  # trained by an earlier version
        return None
    try:
        fields = disk.read_sealed(folder / WORLD)
        if (fields["env"], fields["env_options"]) != (config.env, config.env_options):
            raise ValueError(f"it is of {fields['env']}")
        return _spec(fields["spec"])
    except (disk.Damaged, OSError, ValueError, KeyError, TypeError) as error:
        warn(f"'{folder / WORLD}' is damaged: {error}; the world itself is asked instead.")
        return None


def check_masks(trained: EnvSpec, spec: EnvSpec, folder: Path) -> None:
    """Refuse a run of earlier versions, which did not move action masks to the beginning of observations."""
    if trained.masked != spec.masked:
        raise UserError(
            f"The run in '{folder}' is from an earlier version of Shoal, which did not apply the action masks of "
            f"{spec.name}; train it again."
        )


def needs_trust(config: TrainConfig, folder: Path) -> bool:
    """Whether the code of this run may be run only if the user trusts it: not if they have trained the run here."""
    if not any(untrusted(*each) for each in config.code):
        return False
    try:
        signature = disk.read_sealed(folder / WORLD)["signature"]
    except (disk.Damaged, OSError, KeyError):
        return True
    return not is_signed(signature, folder, config.code)


def _spec(fields: Any) -> EnvSpec:
    """The description with these values; an error of some kind if they cannot be one."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in {**fields}.items()
    }
    if "figures" in values:  # what earlier versions called it
        values["metrics"] = values.pop("figures")
    values["choices"] = tuple(map(tuple, values.get("choices", ())))
    values |= {name: None if fields[name] is None else np.array(fields[name], np.float32) for name in BOUNDS}
    spec = EnvSpec(**values)
    sizes = (*spec.observation_sizes, *spec.action_sizes)
    simple = {name: kind for name, kind in get_type_hints(EnvSpec).items() if kind in (str, bool, int)}
    typed = [*((getattr(spec, name), kind) for name, kind in simple.items()), *((size, int) for size in sizes)]
    typed += [(name, str) for name in (*spec.agent_names, *spec.agent_groups, *spec.metrics)]
    if any(type(value) is not kind for value, kind in typed):
        raise ValueError("a value has the wrong type")
    if spec.choices and any(sum(own) > size for own, size in zip(spec.choices, spec.action_sizes, strict=True)):
        raise ValueError("its choices are wrong")
    if not 0 < spec.agents == len(spec.observation_sizes) == len(spec.action_sizes) or min(sizes) < 1:
        raise ValueError("its sizes are wrong")
    for bound in (spec.action_low, spec.action_high):
        if spec.discrete is not (bound is None) or (bound is not None and bound.shape != spec.action_mask.shape):
            raise ValueError("its bounds have the wrong shape")
    return spec
