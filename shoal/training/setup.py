"""What has to be right before a run begins: its settings, threads, device and memory."""

import dataclasses
import os
from pathlib import Path

import torch

from shoal.algorithms.config import option
from shoal.envs.base import EnvSpec
from shoal.errors import UserError
from shoal.memory import check_fits
from shoal.training.config import TrainConfig, read_config


def stored_config(asked: TrainConfig, folder: Path) -> TrainConfig:
    """The settings of the run in this folder; one that was asked for and differs is refused."""
    stored = read_config(folder)
    for field in dataclasses.fields(TrainConfig):
        value, kept = getattr(asked, field.name), getattr(stored, field.name)
        if field.name != "out" and value not in (kept, field.default):
            raise UserError(
                f"{option(field.name)} is {value}, but the run in '{folder}' has {kept}: "
                "a resumed run keeps its settings."
            )
    return stored


def set_threads(threads: int) -> None:
    """Use this many processor threads in torch and numba alike."""
    import numba

    torch.set_num_threads(threads)
    numba.set_num_threads(min(threads, os.cpu_count() or 1))


def make_device(name: str) -> torch.device:
    """The torch device of this name, if it is there and works."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
        torch.Generator(device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"--device '{name}' cannot be used here ({reason}); 'cpu' always works.") from None
    return device


def check_update_memory(config: TrainConfig, spec: EnvSpec) -> None:
    """Refuse an update that does not fit in memory: weights, targets, gradients and Adam's two moments of the
    critics, and what the mini-batches keep for their gradients."""
    if config.device != "cpu":
        return
    joint = spec.agents * (spec.observation_size + spec.action_size)
    units = spec.agents * (2 if config.algorithm == "masac" else 1) * sum(config.hidden)
    widest = spec.agents * (2 if config.algorithm == "masac" else 1) * config.hidden[0]
    weights = 5 * 4 * joint * widest
    rows = 4 * config.batch * (2 * joint * (1 if config.minibatch == "shared" else spec.agents) + 3 * units)
    check_fits(
        f"An update of {spec.agents} agents",
        weights + rows,
        lambda usable: "train fewer --agents, or with smaller --hidden layers or a smaller --batch",
    )
