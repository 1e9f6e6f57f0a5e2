"""The model in a Stable-Baselines3 zip, playing in a Gymnasium environment."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.envs.base import EnvSpec
from shoal.errors import UserError, counted
from shoal.inference.policy import Draws, Head, Policy
from shoal.policies.baselines_model import Model, read_zip, to_policy, trained_network
from shoal.policies.normaliser import MissingNormaliser, read_normaliser
from shoal.policies.torch_policy import (
    STATES,
    StatesFrom,
    Thinned,
    TorchPolicy,
    choices_kl,
    collect_states,
    gaussians_kl,
)
from shoal.policies.trained import MOST_IMAGES, Array, world_config
from shoal.training.evaluation import Act, Evaluation, random_act

COPIES, AT_RANDOM = 16, 0.2  # for collecting states: copies of the environment, and the share of random actions


def load_zip(
    path: Path, options: Mapping[str, Any], normaliser: str, trust: bool, warn: Callable[[str], None]
) -> "BaselinesPolicy":
    """Load the model in a zip, in the environment that `options` names."""
    model = read_zip(path, trust, read_normaliser(Path(normaliser), trust) if normaliser else None)
    return BaselinesPolicy(model, options, warn)


class BaselinesPolicy(TorchPolicy):
    """A Stable-Baselines3 model."""

    kind = "zip"
    agents = 1

    def __init__(
        self, model: Model, options: Mapping[str, Any], warn: Callable[[str], None] = lambda sentence: None
    ) -> None:
        """`options`: its environment, with or without the prefix gym:, and the user's other options for it."""
        self.model, self.name, self.algorithm = model, model.path, model.algorithm
        env = str(options.get("env") or "")
        if not env:
            raise UserError(f"`env` is missing: the zip '{self.name}' does not say which environment its model plays.")
        named = {"env": f"gym:{env.removeprefix('gym:')}"}
        self.config = world_config(None, {**options, **named}, trust=True, owner="")
        if model.channels is not None and (idle := sorted(options.keys() - {"env"})):
            raise UserError(f"`{idle[0]}` has no effect on an environment with image observations; leave it out.")
        self.network, self.layer_names = model.network, model.names
        self.trained, self.trained_bits = trained_network(model), model.trained_bits
        if model.channels is not None:
            self.channels, self.most_copies = model.channels, MOST_IMAGES
        self.overhead = 0 if model.normaliser is None else model.normaliser.nbytes
        self.modes = (True, False) if self._draws_actions else (True,)
        world = self.make_env()  # checked before anything is played
        self.spec, self.discrete = world.spec, world.spec.discrete
        world.close()
        self.observation_size, self.action_size = self.spec.observation_size, self.spec.action_size
        self.reseed(0)
        # other episodes than in its training give other returns
        self._changed = bool(options.keys() - {"env", "env_workers"})
        self._missing = MissingNormaliser(model, self.env.removeprefix("gym:"), warn)
        self._missing.check_files()
        self._check_bounds(warn)

    def _played(self, act: Act | None, episodes: int, seed: int, advance: Callable[[int], None] | None) -> Evaluation:
        if act is None or self._missing.silent:
            return super()._played(act, episodes, seed, advance)
        visited = Thinned(STATES)

        def watched(observation: Array) -> Array:
            visited.add(observation)
            return act(observation)

        result = super()._played(watched, episodes, seed, advance)
        self.notice(visited.array(), result.mean)
        return result

    def notice(self, states: Array, return_mean: float | None = None) -> None:
        self._missing.check_states(states)
        if return_mean is not None and not self._changed:
            self._missing.check_return(return_mean)

    def respond(self, observation: Array, deterministic: bool) -> Array:
        """The model's actions: the most likely ones, or sampled as in its training."""
        head = self.outputs(observation)
        if deterministic:
            return self.actions(head)
        if self.model.discrete:
            return self.actions(head - torch.from_numpy(self._noise.uniform(tuple(head.shape))).log().neg().log())
        assert self.model.log_std is not None
        return self.actions(head + self.model.log_std.exp() * torch.randn(head.shape, generator=self._generator))

    def reseed(self, seed: int) -> None:
        self._noise, self._generator = Draws(seed), torch.Generator().manual_seed(seed)

    def head(self, network: Any, observation: Array) -> Tensor:
        rows = observation[:, 0]
        if self.model.scale_image:
            rows = rows / np.float32(255)
        if (normaliser := self.model.normaliser) is not None:
            rows = normaliser.apply(rows, np.float32)
        x = torch.from_numpy(rows)
        return network(x if self.image is None else x.view(-1, *self.image))[:, None]

    def actions(self, head: Tensor) -> Array:
        if self.model.discrete:
            return torch.nn.functional.one_hot(head.argmax(-1), head.shape[-1]).float().numpy()
        low, high = self.spec.action_low, self.spec.action_high
        assert low is not None and high is not None
        if self.model.squash == "tanh":
            return np.asarray(low + 0.5 * (head.tanh().numpy() + 1) * (high - low), np.float32)
        return np.clip(head.numpy(), low, high)

    @property
    def _draws_actions(self) -> bool:
        """A2C and PPO; SAC's deviations are not read, the others are deterministic."""
        if self.model.algorithm not in ("a2c", "ppo"):
            return False
        return self.model.discrete or self.model.log_std is not None

    def divergence(self, head: Tensor, other: Tensor) -> Tensor | None:
        if not self._draws_actions:
            return None
        if self.model.discrete:
            return choices_kl(head, other)
        assert self.model.log_std is not None
        deviation = self.model.log_std.exp().expand_as(head)
        return gaussians_kl(head, deviation, other, deviation).sum(-1)

    def portable(self, sample: bool = False, each: bool = False) -> Policy:
        """The model without torch, with the grids that it was trained with."""
        if each:
            raise UserError("`each=True` is for teams; the model in a zip is a single agent.")
        low, high = self.spec.action_low, self.spec.action_high
        policy = to_policy(self.model, low, high, self.image, self.spec.whole_numbers)
        if sample:
            if not policy.head.discrete or self.model.algorithm == "dqn":
                raise UserError("Only the choices of A2C and PPO can be sampled.")
            policy = replace(policy, head=Head("categorical"))
        return replace(policy, metadata={**policy.metadata, "env": self.env, "world": {"env": self.env}})

    def states(self, seed: int = 0) -> tuple[Array, StatesFrom]:
        """States from episodes in which every fifth action is random."""
        copies = min(COPIES, self.most_copies)
        env = self.make_env(copies, seed)
        rng, at_random = np.random.default_rng(seed), random_act(env.spec, seed)

        def act(observation: Array) -> Array:
            random = rng.random((copies, 1, 1)) < AT_RANDOM
            return np.where(random, at_random(observation), self.respond(observation, deterministic=True))

        states = collect_states(env, act, rng, -(-STATES // copies))
        self.notice(states)
        return states, "played"

    def _check_bounds(self, warn: Callable[[str], None]) -> None:
        """Warn if its actions were in another box: a wrapper may have changed them, which is not in the zip."""
        bounds, low, high = self.model.action_bounds, self.spec.action_low, self.spec.action_high
        if bounds is None or low is None or high is None or bounds.shape != (2, low.size):
            return
        world = np.concatenate([low, high])  # (2, A)
        if not np.allclose(bounds, world, rtol=1e-5, atol=1e-6):
            trained, played = (f"{_shown(box[0])} to {_shown(box[1])}" for box in (bounds, world))
            warn(
                f"'{self.name}' was trained with actions from {trained}, but those of {self.env} are from {played}: "
                f"its actions are {'scaled' if self.model.squash == 'tanh' else 'clipped'} to the latter."
            )

    def _check_fits(self, spec: EnvSpec, image: tuple[int, int, int] | None) -> None:
        model, self.image = self.model, image
        if model.inputs is not None and model.inputs != spec.observation_size:
            raise UserError(
                f"`env={self.env}` does not fit the model in '{model.path}': it shows "
                f"{counted(spec.observation_size, 'number')}, the model sees {model.inputs}."
            )
        kind = {True: ("choice", "choices"), False: ("number in a box", "numbers in a box")}
        if (spec.discrete, spec.action_size) != (model.discrete, model.actions):
            raise UserError(
                f"`env={self.env}` does not fit the model in '{model.path}': it takes "
                f"{counted(spec.action_size, *kind[spec.discrete])}, the model gives "
                f"{counted(model.actions, *kind[model.discrete])}."
            )
        if not spec.from_zero:
            raise UserError(
                f"`env={self.env}` does not number its choices from 0, which Stable-Baselines3 assumes: "
                "the model would play other choices than in its training."
            )
        if image is not None:
            try:
                with torch.no_grad():
                    self.network(torch.zeros(1, *image))
            except RuntimeError:
                raise UserError(
                    f"`env={self.env}` does not fit the model in '{model.path}': its images are "
                    f"{image[1]} x {image[2]}, but the model's layers need another size."
                ) from None


def _shown(numbers: NDArray[Any]) -> str:
    """One end of a box; a single number where all are equal."""
    texts = [f"{number:.4g}" for number in numbers]
    return texts[0] if len(set(texts)) == 1 else f"({', '.join(texts)})"
