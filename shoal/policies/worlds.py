"""The world that a trained policy plays in: its own, or one that the user names."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from shoal.errors import UserError
from shoal.training.config import TrainConfig, WorldConfig
from shoal.trust import check_trusted

FIELDS = tuple(field.name for field in dataclasses.fields(WorldConfig))


def world_settings(config: TrainConfig) -> dict[str, Any]:
    """The settings of a run that define its world."""
    return {name: getattr(config, name) for name in FIELDS}


def world_config(own: Any, said: Mapping[str, Any], trust: bool, what: str) -> TrainConfig:
    """The settings of the world to play in.

    Args:
        own: the world that the policy was trained in; anything else is ignored.
        said: the user's options; in another world none of the policy's own settings are kept.
        trust: allow running third-party code that `own` names.
        what: the owner of the world, for the message that asks for --trust.

    """
    held = own if isinstance(own, dict) and own.keys() <= set(FIELDS) else {}
    env = str(said.get("env") or held.get("env") or "")
    if f"gym:{env}" == held.get("env"):  # a Gymnasium ID without prefix
        env = f"gym:{env}"
    if not env:
        raise UserError("The file does not name the world that it was trained in; pass one with `env`.")
    if env != held.get("env"):
        held = {}
    unsaid = {name: "" if name in said else str(held.get(name) or "") for name in ("env", "env_options")}
    check_trusted(what, unsaid["env"], unsaid["env_options"], trust)
    return TrainConfig(**{**held, **said, "env": env}).checked()
