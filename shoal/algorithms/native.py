"""A team that learns and acts in native code (`shoal/native`), on the CPU and in full precision; imports no torch.

Its state has the form of `Team`, so that one checkpoint serves both.
Shape letters: E copies, N agents, C networks in a stack, O observation, A action, J joint, H hidden.
"""

from collections.abc import Mapping
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.base import Arrays, BaseTeam, Phase, check_team_fits, check_weights, target_entropies
from shoal.algorithms.config import LearnConfig
from shoal.envs.base import EnvSpec
from shoal.native.engine import Engine
from shoal.native.maddpg import MADDPG, Settings
from shoal.native.masac import MASAC
from shoal.native.work import MOMENT
from shoal.networks.layout import (
    Kind,
    actor_names,
    actor_widths,
    critic_names,
    critic_widths,
    initial_layers,
    initial_random,
)
from shoal.replay import Batch, Returns, Ring, Sampler
from shoal.seeding import stream_seed


class NativeTeam(BaseTeam):
    """Networks and their targets in native memory."""

    def __init__(
        self, spec: EnvSpec, config: LearnConfig, seed: int, threads: int = 1, dtype: type = np.float32
    ) -> None:
        super().__init__(spec, config)
        check_team_fits(spec, config)
        settings = Settings(**{field.name: getattr(config, field.name) for field in fields(Settings)})
        if config.algorithm == "masac":
            wanted = np.array(target_entropies(spec, config) if config.learn_entropy else [], dtype).tolist()
            algorithm: MADDPG = MASAC(spec, settings, self.hard, dtype, tuple(wanted))
        else:
            algorithm = MADDPG(spec, settings, self.hard, dtype)
        self.losses = algorithm.losses
        self.targets = {name: name.removeprefix("target_") for name in algorithm.networks if name.startswith("target_")}
        self.engine = Engine(algorithm, stream_seed(seed, "update"), stream_seed(seed, "exploration"), threads)
        self._learned = [name for name in algorithm.networks if name not in self.targets]
        self._set_initial_weights(seed)

    def _set_initial_weights(self, seed: int) -> None:
        """The numbers that a `Team` of this seed begins with; targets are equal to their online networks."""
        random, config, algorithm = initial_random(seed), self.config, self.engine.algorithm
        initial = {
            "actors": initial_layers(actor_widths(self.spec, config.hidden, algorithm.head_width), random),
            "critics": initial_layers(critic_widths(self.spec, config.critic_layers, algorithm.heads), random),
        }
        for name in algorithm.networks:
            for number in range(algorithm.networks[name].count):
                arrays = [stacked[number] for stacked in initial[self.targets.get(name, name)]]
                self.engine.write(name, number, _flat_biases(arrays))
        self.engine.prepare()

    @property
    def kind(self) -> Kind:
        """Choices are drawn by probabilities; boxes are points, or Gaussians in MASAC."""
        if self.spec.discrete:
            return "categorical"
        return "gaussian" if self.config.algorithm == "masac" else "deterministic"

    # ---- acting and learning -----------------------------------------------------------------------------------------

    def act(self, observation: NDArray[np.float32], explore: bool = True) -> NDArray[np.float32]:
        """Actions (E, N, A) for observations (E, N, O): noisy as in training, or the most likely ones."""
        return self.engine.act(observation, explore)

    def update(self, ring: Ring, sampler: Sampler, rng: np.random.Generator, phase: Phase) -> Arrays:
        """Draw a mini-batch and update all agents once; returns each agent's losses (N,)."""
        phase("mini-batch sampling")
        return self.learn(self.draw(ring, sampler, rng), phase)

    def learn(self, batch: Batch | Returns, phase: Phase) -> Arrays:
        """Update all agents once on this mini-batch; returns each agent's losses (N,)."""
        phase("target Q: next action")
        losses = self.engine.learn(batch)
        shares = self.engine.shares()
        if (divide := getattr(phase, "divide", None)) is not None:  # a clock: phases of different agents overlap
            divide(shares)
        phase("other")
        return losses

    # ---- state -------------------------------------------------------------------------------------------------------

    def weights(self) -> Arrays:
        """All networks' parameters by name, targets included."""
        weights = {
            f"{network}.{name}": array
            for network in self.engine.algorithm.networks
            for name, array in zip(self._names(network), self._read(network), strict=True)
        }
        if temperature := self._temperature():
            weights["temperature.log"] = temperature["log"].copy()
        return weights

    def load_weights(self, weights: Mapping[str, NDArray]) -> None:
        """Take over what `weights` returned; other shapes or names are refused with a sentence."""
        check_weights(self.weights(), weights)
        for network in self.engine.algorithm.networks:
            self._write(network, [weights[f"{network}.{name}"] for name in self._names(network)])
        if temperature := self._temperature():
            temperature["log"][:] = weights["temperature.log"]
        self.engine.prepare()

    def rollout_arrays(self) -> list[NDArray]:
        """The policies that play: weight (N, in, out), bias (N, 1, out), weight, bias, …"""
        algorithm = self.engine.algorithm
        return self._read(next(name for name, own in algorithm.networks.items() if own is algorithm.rollout_actors))

    def optimizer_state(self) -> Arrays:
        """All optimizers' moments by name; and the number of updates where targets do not move in every one."""
        steps = np.array(self.engine.counters[MOMENT], np.float32)
        state: Arrays = {}
        for network in self._learned:
            for of in ("mean", "square"):
                state |= {f"{network}.{k}.{of}": array for k, array in enumerate(self._read(network, of))}
            state |= {f"{network}.{k}.step": steps for k in range(len(self._names(network)))}
        if temperature := self._temperature():
            state |= {f"temperature.0.{of}": temperature[of].copy() for of in ("mean", "square")}
            state["temperature.0.step"] = steps
        return state if self.config.target_period == 1 else state | {"updates": np.array(self.engine.counters[MOMENT])}

    def load_optimizer_state(self, state: Mapping[str, NDArray]) -> None:
        """Continue from what `optimizer_state` returned."""
        for network in self._learned:
            for of in ("mean", "square"):
                self._write(network, [state[f"{network}.{k}.{of}"] for k in range(len(self._names(network)))], of)
        if temperature := self._temperature():
            for of in ("mean", "square"):
                temperature[of][:] = state[f"temperature.0.{of}"]
        self.engine.counters[MOMENT] = int(state["actors.0.step"])

    def random_state(self) -> Arrays:
        """Seeds and numbers of draws."""
        return {"update": self.engine.counters.copy(), "exploration": self.engine.rollout_counters.copy()}

    def load_random_state(self, state: Mapping[str, NDArray]) -> None:
        """Continue from what `random_state` returned."""
        self.engine.counters[:] = state["update"]  # the number of updates, too: the optimizers' is float32, as in torch
        self.engine.rollout_counters[:] = state["exploration"]

    def _names(self, network: str) -> list[str]:
        """Names of the arrays of a stack."""
        layers = len(self.engine.algorithm.networks[network].shape.layers)
        return (actor_names if network.endswith("actors") else critic_names)(layers)

    def _axes(self, network: str) -> list[int]:
        """Along which axis of each array the networks are stacked."""
        return [int(name == "first") for name in self._names(network)]

    def _read(self, network: str, of: str = "weights") -> list[NDArray]:
        """Arrays of a stack: weights, or Adam's `mean` or `square` of them."""
        count = self.engine.algorithm.networks[network].count
        each = zip(*(self.engine.read(network, number, of) for number in range(count)), strict=True)
        return [
            np.stack([np.atleast_2d(one) for one in arrays], axis)
            for arrays, axis in zip(each, self._axes(network), strict=True)
        ]

    def _write(self, network: str, stacked: list[NDArray], of: str = "weights") -> None:
        """Take over what `_read` returned."""
        apart = [np.moveaxis(array, axis, 0) for array, axis in zip(stacked, self._axes(network), strict=True)]
        for number in range(self.engine.algorithm.networks[network].count):
            self.engine.write(network, number, _flat_biases([array[number] for array in apart]), of)

    def _temperature(self) -> dict[str, NDArray]:
        """(N, 1) views of the learned temperatures' logarithms and of Adam's moments of them; nothing if fixed."""
        algorithm = self.engine.algorithm
        if not (isinstance(algorithm, MASAC) and self.config.learn_entropy):
            return {}
        places = {"log": algorithm.log_alpha, "mean": algorithm.alpha_mean, "square": algorithm.alpha_square}
        return {key: algorithm.program.values(at)[: self.spec.agents, None] for key, at in places.items()}


def _flat_biases(arrays: list[NDArray]) -> list[NDArray]:
    """Weights (in, out) as they are, biases (1, out) as (out,)."""
    return [array if k % 2 == 0 else array[0] for k, array in enumerate(arrays)]
