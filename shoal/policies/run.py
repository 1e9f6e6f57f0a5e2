"""The trained team of a run folder."""

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.algorithms.team import Team
from shoal.envs.base import EnvSpec
from shoal.errors import UserError, counted
from shoal.inference.policy import MASKED, Policy
from shoal.networks.actors import Actors, log_deviation
from shoal.policies.torch_policy import STATES, StatesFrom, TorchPolicy, choices_kl, collect_states, gaussians_kl
from shoal.policies.trained import Array, world_config, world_settings
from shoal.quantization.export import from_team
from shoal.replay.layout import RowLayout
from shoal.runs.checkpoint import newest_segment
from shoal.runs.folder import CHECKPOINTS
from shoal.system.files import absolute
from shoal.training.config import TrainConfig
from shoal.training.precision import QatPrecision
from shoal.training.saved_team import acting_team, load_team
from shoal.training.world_file import check_masks

COPIES, STEPS = 16, 128  # copies of the world in which states are collected, with exploration noise


def load_run(
    folder: Path, options: Mapping[str, Any], trust: bool, warn: Callable[[str], None], checkpoint: str = "last"
) -> "RunPolicy":
    """Load the team of a run folder, in its own world or in the one that the options name; see `load_team`."""
    team, config = load_team(folder, warn, trust, str(options.get("env", "")), checkpoint)
    world = world_config(world_settings(config), options, trust=True, owner=f"'{folder}'") if options else config
    workers = options.get("env_workers")  # how many processes start here is not for the run's folder to say
    return RunPolicy(team, dataclasses.replace(config, env_workers=workers, **world_settings(world)), folder)


class RunPolicy(TorchPolicy):
    """The trained team of a run."""

    kind = "run"
    modes = (True, False)

    def __init__(self, team: Team, config: TrainConfig, folder: Path) -> None:
        self.team, self.config, self.folder = team, config, absolute(folder)
        self.name, self.algorithm, self.spec = str(folder), config.algorithm, team.spec
        self.agents, self.discrete = team.spec.agents, team.spec.discrete
        self.several = bool(self.spec.choices)
        self.observation_size, self.action_size = team.spec.observation_size, team.spec.action_size
        actors = team.rollout_actors
        self.network = _without_quantizer(actors)
        precision = team.precision
        self.trained = actors if isinstance(precision, QatPrecision) and bool(precision.qat.on) else None
        self.trained_bits = config.qat_bits
        self.trained_agents = None if config.qat_agent is None else (config.qat_agent,)
        self.layer_names = tuple(f"actors.{number}" for number in range(len(actors.weights)))
        normaliser = team.normalisation.normaliser
        self.overhead = 0 if normaliser is None else normaliser.nbytes
        self._player = acting_team(team, config)
        self._noise = self._player.random_state()

    @property
    def played_network(self) -> nn.Module:
        """The actors; of Gaussian ones only the means."""
        if self.team.rollout_actors.kind != "gaussian":
            return self.network
        actors = _without_quantizer(self.team.rollout_actors)
        for last in (actors.weights, actors.biases):
            last[-1] = nn.Parameter(last[-1].detach()[..., : self.action_size])
        return actors

    def _check_fits(self, spec: EnvSpec, image: tuple[int, int, int] | None) -> None:
        offered, trained = (
            (world.observation_sizes, world.action_sizes, world.each_choice) for world in (spec, self.spec)
        )
        if offered != trained:
            raise UserError(
                f"`env={self.env}` does not fit the run in '{self.name}': it has {_sizes(spec)}, the run "
                f"{_sizes(self.spec)}."
            )
        check_masks(self.spec, spec, self.folder)

    def respond(self, observation: Array, deterministic: bool) -> Array:
        """The team's actions: the most likely ones, or with exploration noise."""
        return self._player.to_world(self._player.act(observation, explore=not deterministic))

    def reseed(self, seed: int) -> None:
        """Reset the exploration noise to its state when the run was loaded, which the run's own seed determines."""
        self._player.load_random_state(self._noise)

    def head(self, network: Any, observation: Array) -> Tensor:
        rows = torch.from_numpy(self.team.normalisation.observed(observation)).to(self.team.device).transpose(0, 1)
        return network(rows).transpose(0, 1).cpu()

    def actions(self, head: Tensor) -> Array:
        chosen = self.team.rollout_actors.greedy(head.transpose(0, 1)).transpose(0, 1)
        return self.team.to_world(chosen.contiguous().cpu().numpy())

    def divergence(self, head: Tensor, other: Tensor) -> Tensor | None:
        """(B, N): KL of the choices, or of the Gaussians before squashing, which is the same."""
        actors = self.team.rollout_actors
        if actors.kind in ("deterministic", "values") or self.spec.choices:
            return None
        real = actors.real.transpose(0, 1)  # (1, N, A)
        if actors.kind == "categorical":
            return choices_kl(head.masked_fill(~real, MASKED), other.masked_fill(~real, MASKED))
        (mean, squashed), (other_mean, other_squashed) = head.chunk(2, -1), other.chunk(2, -1)
        deviations = log_deviation(squashed).exp(), log_deviation(other_squashed).exp()
        return (gaussians_kl(mean, deviations[0], other_mean, deviations[1]) * real).sum(-1)

    def portable(self, sample: bool = False, each: bool = False) -> Policy:
        if self.spec.choices:
            what = "both choices and boxes" if self.spec.mixed else "several choices per agent"
            raise UserError(
                f"The actions of {self.spec.name} are {what}, which exported files do not support; play the run itself."
            )
        metadata = {"env": self.env, "world": world_settings(self.config), "algorithm": self.config.algorithm}
        return dataclasses.replace(from_team(self.team, sample, one_agent=each), metadata=metadata).check()

    def states(self, seed: int = 0) -> tuple[Array, StatesFrom]:
        """States from the run's replay, if that is still on disk; else from episodes with exploration noise."""
        rng = np.random.default_rng(seed)
        if (segment := newest_segment(self.folder / CHECKPOINTS)) is not None:
            rows = segment["rows"][rng.integers(len(segment["rows"]), size=STATES)]
            return RowLayout.of(self.spec, self.config.storage).observations(rows), "replay"
        self.reseed(seed)
        env, act = self.make_env(COPIES, seed, stagger=True), functools.partial(self.respond, deterministic=False)
        return collect_states(env, act, rng, STEPS), "played"


def _sizes(spec: EnvSpec) -> str:
    """The sizes of a world's observations and actions, in words."""
    seen, acted = counted(spec.observation_size, "number"), counted(spec.action_size, "action")
    return f"{counted(spec.agents, 'agent')} with observations of {seen} and {acted}"


def _without_quantizer(actors: Actors) -> Actors:
    actors = copy.deepcopy(actors)
    actors.quantizers = None
    return actors
