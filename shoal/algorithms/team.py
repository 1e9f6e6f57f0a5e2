"""What the algorithms in torch have in common: the stacked networks of a team, acting, and their state on disk."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.algorithms.adam import StackedAdam, move_targets
from shoal.algorithms.base import Arrays, BaseTeam, Phase, check_weights
from shoal.algorithms.config import LearnConfig
from shoal.algorithms.minibatch import Minibatch, as_tensors, every_observation, put_actions
from shoal.algorithms.precision import FULL, Precision
from shoal.envs.base import EnvSpec
from shoal.networks.actors import Actors, Noise, load_noise_states, noise_states
from shoal.networks.critics import JointCritics
from shoal.networks.layout import Kind, Random
from shoal.networks.pooled import PooledCritics
from shoal.networks.stacked import to_arrays, to_tensors
from shoal.replay import Ring, Sampler
from shoal.seeding import stream_seed

ONE_THREAD = 30_000_000  # products that one thread does in about a millisecond


class Team(BaseTeam):
    """Networks and their targets for all agents of a world; an algorithm says how they `learn`."""

    heads: ClassVar[int] = 1
    """Critics per agent."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """For MODULE:CLASS: its own values of settings that default to None."""
    actors: Actors
    critics: JointCritics | PooledCritics

    def __init__(self, spec: EnvSpec, config: LearnConfig, seed: int, device: torch.device) -> None:
        super().__init__(spec, config)
        self.device = device
        self.noise = Noise(stream_seed(seed, "update"), device)
        self.rollout_noise = Noise(stream_seed(seed, "exploration"), device)
        self._noises = {"update": self.noise, "exploration": self.rollout_noise}
        self.networks: dict[str, nn.Module] = {}
        self.optimizers: dict[str, StackedAdam] = {}
        self.precision = FULL
        self.updates = 0  # so far
        self._moving: tuple[list[Tensor], list[Tensor]] | None = None  # target and online parameters, listed once

    def new_actors(self, kind: Kind, random: Random) -> Actors:
        """Actors of this kind for the world's choices or boxes."""
        return Actors(self.spec, self.config.hidden, kind, random, self.hard, self.config.shared_actors).to(self.device)

    def new_critics(self, heads: int, random: Random) -> JointCritics | PooledCritics:
        """Critics over all observations and actions: of Q values, or of distributions if there are atoms."""
        config = self.config
        if config.critic == "pooled":
            sizes = (self.spec, config.critic_layers, heads, random, config.atoms, config.shared_critics)
            return PooledCritics(*sizes).to(self.device)
        return JointCritics(
            self.spec, config.critic_layers, heads, random, config.atoms, config.layer_norm, config.shared_critics
        ).to(self.device)

    def new_adam(self, network: Actors | JointCritics | PooledCritics) -> StackedAdam:
        """An optimizer for one stack of networks."""
        config = self.config
        stacked = network.stacked_parameters()
        return StackedAdam(stacked, config.learning_rate, config.clip, config.clip_by, network.of)

    def use(self, precision: Precision) -> None:
        """Learn in this precision from now on, in torch."""
        self.precision = precision
        for name, adam in self.optimizers.items():
            adam.precision = precision.of(name, adam.parameters)

    def progress(self, samples: int, done: float = 0.0) -> None:
        super().progress(samples, done)
        for adam in self.optimizers.values():
            adam.learning_rate = self.config.learning_rate * self.learning_rate_factor

    @property
    def dense(self) -> bool:
        """Whether the critics' inputs are built whole for every agent instead of using their first layer again."""
        return self.config.first_layer == "dense" or self.precision.dense

    def sample_minibatch(self, ring: Ring, sampler: Sampler, rng: np.random.Generator) -> Minibatch:
        """The transitions that this update learns from, as tensors."""
        return as_tensors(self.draw(ring, sampler, rng), self.spec, self.config.discount, self.device)

    def learn(self, batch: Minibatch, phase: Phase) -> dict[str, Tensor]:
        """Update all agents once on this mini-batch; returns each agent's losses (N,)."""
        raise NotImplementedError

    def update(self, ring: Ring, sampler: Sampler, rng: np.random.Generator, phase: Phase) -> Arrays:
        phase("mini-batch sampling")
        batch = self.sample_minibatch(ring, sampler, rng)
        with self.precision.learning():
            return to_arrays(self.learn(batch, phase))

    @torch.no_grad()
    def redraw_actions(self, batch: Minibatch) -> None:
        """Replace the played actions by the current policies': in place, nothing after the P loss reads them."""
        head = self.actors(every_observation(batch.joint, self.spec))
        put_actions(batch.joint, self.actors.sample(head, self.noise), batch.alive)

    def move_targets(self) -> None:
        """Move every target network towards its online one, all in one go; once in `target_period` updates."""
        self.updates += 1
        if self.updates % self.config.target_period:
            return
        if not self._moving:
            self._moving = (self._parameters(self.targets), self._parameters(self.targets.values()))
        move_targets(*self._moving, self.config.tau)

    def _parameters(self, names: Iterable[str]) -> list[Tensor]:
        return [parameter for name in names for parameter in self.networks[name].parameters()]

    @property
    def rollout_actors(self) -> Actors:
        """The policies that play, in training and in evaluation."""
        return self.actors

    @property
    def kind(self) -> Kind:
        return self.rollout_actors.kind

    def rollout_arrays(self) -> list[NDArray]:
        return [parameter.detach().cpu().numpy() for parameter in self.rollout_actors.flat]

    @torch.inference_mode()
    def act(self, observation: NDArray[np.float32], explore: bool = True) -> NDArray[np.float32]:
        actors = self.rollout_actors
        with threads_for(len(observation) * actors.weight_count):
            head = actors(torch.from_numpy(self.normalisation.observed(observation)).to(self.device).transpose(0, 1))
            if explore:
                actions = actors.explore(head, self.rollout_noise, self.exploration)
            else:
                actions = actors.greedy(head)
            return actions.transpose(0, 1).contiguous().cpu().numpy()

    def weights(self) -> Arrays:
        return to_arrays(self._named_parameters() | self.precision.state()) | self.normalisation.state()

    def _named_parameters(self) -> dict[str, Tensor]:
        return {
            f"{network}.{name}": parameter.detach()
            for network, module in self.networks.items()
            for name, parameter in module.named_parameters()
        }

    def load_weights(self, weights: Mapping[str, NDArray]) -> None:
        own, given = self._named_parameters(), to_tensors(weights)
        check_weights(to_arrays(own) | self.normalisation.state(), weights)
        for name, parameter in own.items():
            parameter.copy_(given[name])
        self.precision.load_state(given)
        self.normalisation.load_state(weights)

    def optimizer_state(self) -> Arrays:
        state = {
            f"{name}.{key}": value for name, adam in self.optimizers.items() for key, value in adam.state().items()
        }
        return to_arrays(state) | ({} if self.config.target_period == 1 else {"updates": np.array(self.updates)})

    def load_optimizer_state(self, state: Mapping[str, NDArray]) -> None:
        for name, adam in self.optimizers.items():
            prefix = f"{name}."
            own = {key.removeprefix(prefix): array for key, array in state.items() if key.startswith(prefix)}
            adam.load_state(to_tensors(own))
        if "updates" in state:
            self.updates = int(state["updates"])

    def random_state(self) -> Arrays:
        return noise_states(self._noises)

    def load_random_state(self, state: Mapping[str, NDArray]) -> None:
        load_noise_states(self._noises, state)


@contextmanager
def threads_for(products: int) -> Iterator[None]:
    """One thread for few products: others would only be waited for, long where the processors have other work, too."""
    threads = torch.get_num_threads()
    if threads == 1 or products > ONE_THREAD:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
