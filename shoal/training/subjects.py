"""The policies that can be tried at many widths: a run's team, and a model of Stable-Baselines3.

Shape letters: B rows, N agents, O observation, A action, U outputs.
"""

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.algorithms.team import Team
from shoal.envs import make_env
from shoal.envs.base import EnvSpec, VectorEnv
from shoal.errors import UserError, counted
from shoal.inference.policy import Policy
from shoal.networks import Actors
from shoal.networks.actors import LOG_STD_HIGH, LOG_STD_LOW
from shoal.quantization.stable_baselines import Model, to_policy, trained_network
from shoal.training.config import TrainConfig
from shoal.training.evaluation import load_team
from shoal.training.play import build_env

CLOSE = 0.01
"""Boxes count as equal where every entry is within this part of the box's width."""
MOST_COPIES, MOST_IMAGES = 100, 8


class TeamSubject:
    """The team of a run."""

    most_copies = MOST_COPIES
    overhead = 0

    def __init__(self, team: Team, config: TrainConfig, name: str) -> None:
        self.team, self.config, self.name, self.env = team, config, name, config.env
        actors = team.rollout_actors
        self.network: nn.Module = _without_quantizer(actors)
        self.trained: nn.Module | None = actors if bool(team.extra.get("qat.on", False)) else None
        self.trained_bits = config.qat_bits
        self.trained_networks: tuple[int, ...] | None = None if config.qat_agent is None else (config.qat_agent,)
        self.layer_names = tuple(f"actors.{number}" for number in range(len(actors.weights)))

    def make_env(self, copies: int, seed: int) -> VectorEnv:
        """The run's world, or the one asked for if it fits."""
        env = build_env(self.config, copies, seed, stagger=False)
        own, spec = self.team.spec, env.spec
        if (spec.observation_sizes, spec.action_sizes) != (own.observation_sizes, own.action_sizes):
            env.close()
            raise UserError(
                f"--env {self.env} does not fit the run in '{self.name}': it has {_sizes(spec)}, the run {_sizes(own)}."
            )
        return env

    def head(self, network: Any, observation: NDArray[np.float32]) -> Tensor:
        """(B, N, U)."""
        return network(torch.from_numpy(observation).transpose(0, 1)).transpose(0, 1)

    def actions(self, head: Tensor) -> NDArray[np.float32]:
        """(B, N, A)."""
        chosen = self.team.rollout_actors.greedy(head.transpose(0, 1)).transpose(0, 1)
        return self.team.to_world(chosen.contiguous().cpu().numpy())

    def equal(self, actions: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.bool_]:
        """(B, N)."""
        return equal_actions(actions, others, self.team.spec)

    def divergence(self, head: Tensor, other: Tensor) -> Tensor | None:
        """(B, N): of the choices, or of the Gaussians before they are squashed, which is the same."""
        actors = self.team.rollout_actors
        if actors.kind == "deterministic":
            return None
        if actors.kind == "categorical":
            real = actors.real.transpose(0, 1)  # (1, N, A)
            return choices_kl(head.masked_fill(~real, -1e9), other.masked_fill(~real, -1e9))
        (mean, deviation), (other_mean, other_deviation) = _gaussian(head), _gaussian(other)
        real = actors.real.transpose(0, 1)
        return (gaussians_kl(mean, deviation, other_mean, other_deviation) * real).sum(-1)


class ModelSubject:
    """A model of Stable-Baselines3 in a Gymnasium environment."""

    trained_networks: tuple[int, ...] | None = None

    def __init__(self, model: Model, env: str) -> None:
        self.model, self.name, self.env = model, model.path, env
        self.network: nn.Module = model.network
        self.layer_names = model.names
        self.trained, self.trained_bits = trained_network(model), model.trained_bits
        self.image: tuple[int, int, int] | None = None
        self.most_copies = MOST_COPIES if model.channels is None else MOST_IMAGES
        self.overhead = 0 if model.normaliser is None else 4 * 2 * model.normaliser.mean.size
        world = self.make_env(1, 0)  # found to fit before anything is played
        self.spec = world.spec
        world.close()

    def make_env(self, copies: int, seed: int) -> VectorEnv:
        """The environment, if it fits the model."""
        if self.model.channels is None:
            env = make_env(self.env, copies=copies, seed=seed, stagger=False)
        else:
            from shoal.envs.pixels import make_pixels

            env, self.image = make_pixels(self.env, self.model.channels, copies, seed)
        try:
            self._check(env.spec)
        except UserError:
            env.close()
            raise
        return env

    def head(self, network: Any, observation: NDArray[np.float32]) -> Tensor:
        """(B, 1, U)."""
        model, x = self.model, torch.from_numpy(observation[:, 0])
        if self.image is not None:
            x = x.view(-1, *self.image)
            if model.scale_image:
                x = x / 255
        if (norm := model.normaliser) is not None:
            mean, deviation = (
                torch.from_numpy(norm.mean),
                torch.from_numpy(np.sqrt(norm.var + np.float32(norm.epsilon))),
            )
            x = ((x - mean) / deviation).clamp(-norm.clip, norm.clip)
        return network(x)[:, None]

    def actions(self, head: Tensor) -> NDArray[np.float32]:
        """(B, 1, A)."""
        if self.model.discrete:
            return torch.nn.functional.one_hot(head.argmax(-1), head.shape[-1]).float().numpy()
        low, high = self.spec.action_low, self.spec.action_high
        assert low is not None and high is not None
        if self.model.squash == "tanh":
            return np.asarray(low + 0.5 * (head.tanh().numpy() + 1) * (high - low), np.float32)
        return np.clip(head.numpy(), low, high)

    def equal(self, actions: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.bool_]:
        """(B, 1)."""
        return equal_actions(actions, others, self.spec)

    def divergence(self, head: Tensor, other: Tensor) -> Tensor | None:
        """(B, 1): of A2C's and PPO's policies; DQN and DDPG play one action for certain."""
        if self.model.algorithm in ("dqn", "ddpg") or (not self.model.discrete and self.model.log_std is None):
            return None
        if self.model.discrete:
            return choices_kl(head, other)
        assert self.model.log_std is not None
        deviation = self.model.log_std.exp().expand_as(head)
        return gaussians_kl(head, deviation, other, deviation).sum(-1)

    def policy(self) -> Policy:
        """The model as engines and exports take it, with what it was trained to be rounded to."""
        low, high = self.spec.action_low, self.spec.action_high
        return to_policy(self.model, low, high, self.image, self.spec.whole_numbers)

    @torch.inference_mode()
    def outputs(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        """(B, 1, U): what torch computes as the model was trained, for an export to be checked against."""
        return self.head(self.trained or self.network, observation).numpy()

    def _check(self, spec: EnvSpec) -> None:
        model = self.model
        if model.inputs is not None and model.inputs != spec.observation_size:
            raise UserError(
                f"--env {self.env} does not fit the model in '{model.path}': it shows "
                f"{counted(spec.observation_size, 'number')}, the model sees {model.inputs}."
            )
        kind = {True: ("choice", "choices"), False: ("number in a box", "numbers in a box")}
        if (spec.discrete, spec.action_size) != (model.discrete, model.actions):
            raise UserError(
                f"--env {self.env} does not fit the model in '{model.path}': it takes "
                f"{counted(spec.action_size, *kind[spec.discrete])}, the model gives "
                f"{counted(model.actions, *kind[model.discrete])}."
            )
        if not spec.from_zero:
            raise UserError(
                f"--env {self.env} does not count its choices from 0, as Stable-Baselines3 does without asking: "
                "the model would play other choices than in its training."
            )
        if self.image is not None:
            with torch.no_grad():
                try:
                    self.network(torch.zeros(1, *self.image))
                except RuntimeError:
                    raise UserError(
                        f"--env {self.env} does not fit the model in '{model.path}': its images are "
                        f"{self.image[1]} x {self.image[2]}, and the model's layers are of another size."
                    ) from None


def team_subject(folder: Path, env: str, warn: Callable[[str], None], trust: bool = False) -> TeamSubject:
    """The trained team of a run folder, in its own world or in another that fits; for `trust` see `load_team`."""
    team, config = load_team(folder, warn, trust, env)
    if env and env != config.env:
        config = dataclasses.replace(config, env=env)
    return TeamSubject(team, config, str(folder))


def model_subject(model: Model, env: str) -> ModelSubject:
    """A model in the Gymnasium environment of this name, with or without gym: before it."""
    if not env:
        raise UserError(f"--env is missing: which environment the model in '{model.path}' plays is not in its zip.")
    return ModelSubject(model, env if env.startswith("gym:") else f"gym:{env}")


def equal_actions(actions: NDArray[np.float32], others: NDArray[np.float32], spec: EnvSpec) -> NDArray[np.bool_]:
    """(B, N): the same choice, or within a hundredth of the box's width in every entry."""
    if spec.action_low is None or spec.action_high is None:
        return actions.argmax(-1) == others.argmax(-1)
    return (np.abs(actions - others) <= CLOSE * (spec.action_high - spec.action_low)).all(-1)


def choices_kl(logits: Tensor, others: Tensor) -> Tensor:
    """KL of the categorical distributions of these logits (…, A), from the first to the second."""
    log_p, log_q = logits.double().log_softmax(-1), others.double().log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def gaussians_kl(mean: Tensor, deviation: Tensor, other_mean: Tensor, other_deviation: Tensor) -> Tensor:
    """KL of one-dimensional Gaussians, entry by entry, from the first to the second."""
    mean, deviation, other_mean, other_deviation = (
        value.double() for value in (mean, deviation, other_mean, other_deviation)
    )
    ratio = deviation / other_deviation
    return 0.5 * (ratio.square() + ((mean - other_mean) / other_deviation).square() - 1) - ratio.log()


def _gaussian(head: Tensor) -> tuple[Tensor, Tensor]:
    """Means and deviations of a head."""
    mean, squashed = head.chunk(2, -1)
    return mean, (LOG_STD_LOW + 0.5 * (LOG_STD_HIGH - LOG_STD_LOW) * (squashed.tanh() + 1)).exp()


def _sizes(spec: EnvSpec) -> str:
    """What a world asks of its agents."""
    seen, acted = counted(spec.observation_size, "number"), counted(spec.action_size, "action")
    return f"{counted(spec.agents, 'agent')} with {seen} to see and {acted}"


def _without_quantizer(actors: Actors) -> Actors:
    actors = copy.deepcopy(actors)
    actors.quantizer = None
    return actors
