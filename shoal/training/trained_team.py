"""The trained team of a run folder, in torch."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import torch

from shoal.algorithms import make_team
from shoal.algorithms.native import NativeTeam
from shoal.algorithms.team import Team
from shoal.native.engine import why_unusable
from shoal.runs.checkpoint import newest
from shoal.training.config import TrainConfig, read_config
from shoal.training.early import check_world
from shoal.training.parts import LearningTeam
from shoal.training.play import build_env
from shoal.training.precision import make_precision
from shoal.training.run_folder import CHECKPOINTS
from shoal.training.stored import check_settings, damage, no_checkpoint
from shoal.training.weights_file import chosen_weights
from shoal.training.world_file import stored_spec


def load_team(
    folder: Path, warn: Callable[[str], None], trust: bool = False, named: str = "", checkpoint: str = "last"
) -> tuple[Team, TrainConfig]:
    """Load the trained team of a run folder from its newest intact checkpoint; `warn` is called for damaged files.

    `trust` allows running third-party code that the folder names as its environment; `named` is what the user named.
    The world itself is made only for runs of earlier versions, which did not store its description.
    `checkpoint` may also be `best` or the episode of a snapshot.
    """
    config = read_config(folder)
    if checkpoint == "last":
        found = newest(folder / CHECKPOINTS, ("weights",), warn)
    else:
        found = chosen_weights(folder, checkpoint)
    if found is None:
        raise no_checkpoint(folder)
    check_settings(config, folder, found)
    spec = stored_spec(config, folder, warn)
    elsewhere = named not in ("", config.env, config.env.removeprefix("gym:"))  # its own world is not made
    if spec is None or not elsewhere:
        check_world(config, folder, {"env": named}, trust)
    for sentence in damage(config, folder, found) if checkpoint == "last" else ():
        warn(sentence)
    if spec is None:
        with closing(build_env(config, 1, config.seed, stagger=False)) as env:
            spec = env.spec
    team = make_team(spec, config, config.seed, torch.device("cpu"))
    team.progress(found.meta["samples"])
    make_precision(team, config)  # its state is stored with the weights
    team.load_weights(found.parts["weights"])
    return team, config


def acting_team(team: Team, config: TrainConfig) -> LearningTeam:
    """The team as it acted in training: in native code, if that is where it learned."""
    if config.update != "native" or why_unusable() is not None:
        return team
    native = NativeTeam(team.spec, config, config.seed)
    native.load_weights(team.weights())
    return native
