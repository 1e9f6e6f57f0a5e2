"""What the algorithms have in common: the stacked networks of a team, acting, and their state on disk."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.algorithms.config import LearnConfig
from shoal.algorithms.descent import Descent, move_targets
from shoal.algorithms.minibatch import Minibatch, as_tensors, every_observation, put_actions
from shoal.algorithms.noise import Noise
from shoal.algorithms.precision import FULL, Precision
from shoal.envs.base import EnvSpec
from shoal.errors import UserError
from shoal.networks import Actors, JointCritics, NoiseSource
from shoal.networks.actors import Kind
from shoal.replay import Batch, Returns, Ring, Sampler
from shoal.seeding import stream_seed

if TYPE_CHECKING:
    from shoal.algorithms.native import NativeUpdate

ONE_THREAD = 30_000_000  # products that one thread does in about a millisecond

Phase = Callable[[str], None]
"""Told the name of the phase that begins now."""


class Team:
    """Networks and their targets for all agents of a world; an algorithm says how they `learn`."""

    actors: Actors
    critics: JointCritics
    losses: tuple[str, ...]
    """What `update` returns, by name."""

    def __init__(self, spec: EnvSpec, config: LearnConfig, seed: int, device: torch.device) -> None:
        self.spec, self.config, self.device = spec, config, device
        self.noise: NoiseSource = Noise(stream_seed(seed, "update"), device)
        self.rollout_noise: NoiseSource = Noise(stream_seed(seed, "exploration"), device)
        self.networks: dict[str, nn.Module] = {}
        self.targets: dict[str, str] = {}  # names of target networks, each with that of its online one
        self.descents: dict[str, Descent] = {}
        self.precision = FULL
        self.native: NativeUpdate | None = None  # learns and acts in place of torch
        self.updates = 0  # so far
        self.samples = 0  # that the run has collected so far; see `progress`
        self._moving: tuple[list[Tensor], list[Tensor]] | None = None  # target and online parameters, listed once
        low, high = spec.action_low, spec.action_high
        self._box = None if low is None or high is None else ((high + low) / 2, (high - low) / 2)

    def new_actors(self, kind: Kind, generator: torch.Generator) -> Actors:
        """Actors of this kind for the world's choices or boxes."""
        gumbel = self.config.gumbel
        hard = gumbel == "straight-through" or (gumbel == "auto" and not self.spec.soft_actions)
        return Actors(self.spec, self.config.hidden, kind, generator, hard).to(self.device)

    def new_critics(self, heads: int, generator: torch.Generator) -> JointCritics:
        """Critics over the joint observations and actions: of Q values, or of distributions if there are atoms."""
        config = self.config
        critics = JointCritics(self.spec, config.critic_layers, heads, generator, config.atoms, config.layer_norm)
        return critics.to(self.device)

    def descent(self, network: Actors | JointCritics) -> Descent:
        """An optimizer for one stack of networks."""
        return Descent(network.stacked_parameters(), self.config.learning_rate, self.config.clip, self.config.clip_by)

    def use(self, precision: Precision) -> None:
        """Learn in this precision from now on, in torch."""
        if self.native is not None:
            raise RuntimeError("native code learns in full precision only")
        self.precision = precision
        for name, descent in self.descents.items():
            descent.precision = precision.of(name, descent.parameters)

    @property
    def dense(self) -> bool:
        """Whether the critics' inputs are built whole for every agent instead of using their first layer again."""
        return self.config.first_layer == "dense" or self.precision.dense

    def sample_minibatch(self, ring: Ring, sampler: Sampler, rng: np.random.Generator) -> Minibatch:
        """The transitions that this update learns from."""
        return as_tensors(self._draw(ring, sampler, rng), self.spec, self.config.discount, self.device)

    def _draw(self, ring: Ring, sampler: Sampler, rng: np.random.Generator) -> Batch | Returns:
        minibatches = 1 if self.config.minibatch == "shared" else self.spec.agents
        config = self.config
        return ring.sample(sampler, config.batch, rng, minibatches, config.n_step, config.discount)

    def learn(self, batch: Minibatch, phase: Phase) -> dict[str, Tensor]:
        """Update all agents once on this mini-batch; returns each agent's losses (N,)."""
        raise NotImplementedError

    def update(self, ring: Ring, sampler: Sampler, rng: np.random.Generator, phase: Phase) -> dict[str, Tensor]:
        """Draw a mini-batch and update all agents once; returns each agent's losses (N,)."""
        phase("mini-batch sampling")
        if self.native is not None:
            return self.native.learn(self._draw(ring, sampler, rng), phase)
        batch = self.sample_minibatch(ring, sampler, rng)
        with self.precision.learning():
            return self.learn(batch, phase)

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
    def exploration(self) -> float:
        """How much noise rollouts have: of boxes its standard deviation, in half-widths of the box."""
        return self.config.exploration_noise

    def progress(self, samples: int) -> None:
        """The run has collected so many samples: what decays with them goes on."""
        self.samples = samples

    def act(self, observation: NDArray[np.float32], explore: bool = True) -> NDArray[np.float32]:
        """Actions (E, N, A) for observations (E, N, O): noisy as in training, or the most likely ones."""
        if self.native is not None:
            return self.native.act(observation, explore)
        return self._act_in_torch(observation, explore)

    @torch.inference_mode()
    def _act_in_torch(self, observation: NDArray[np.float32], explore: bool) -> NDArray[np.float32]:
        actors = self.rollout_actors
        with threads_for(len(observation) * actors.weight_count):
            head = actors(torch.from_numpy(observation).to(self.device).transpose(0, 1))
            if explore:
                actions = actors.explore(head, self.rollout_noise, self.exploration)
            else:
                actions = actors.greedy(head)
            return actions.transpose(0, 1).contiguous().cpu().numpy()

    def to_world(self, actions: NDArray[np.float32]) -> NDArray[np.float32]:
        """Actions as the world takes them: boxes from [-1, 1] to its own units, choices as they are."""
        if self._box is None:
            return actions
        middle, half = self._box
        return np.asarray(middle + half * actions, np.float32)

    def learn_natively(self, seed: int, threads: int) -> None:
        """Learn and act in native code from now on, in full precision; see `algorithms/native.py`."""
        from shoal.algorithms.native import NativeUpdate

        self.native = NativeUpdate(self, seed, threads)

    def synchronise(self) -> None:
        """Bring the torch networks up to date where native code learns."""
        if self.native is not None:
            self.native.give()

    def synchronise_policies(self) -> None:
        """The same for the policies that play alone."""
        if self.native is not None:
            self.native.give_policies()

    def weights(self) -> dict[str, Tensor]:
        """All networks' parameters by name, targets included, and the state of the precision."""
        self.synchronise()
        return self._named_parameters() | self.precision.state()

    def _named_parameters(self) -> dict[str, Tensor]:
        return {
            f"{network}.{name}": parameter.detach()
            for network, module in self.networks.items()
            for name, parameter in module.named_parameters()
        }

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take over what `weights` returned; other shapes or names are refused with a sentence."""
        own = self._named_parameters()
        if missing := own.keys() - weights.keys():
            raise UserError(f"The weights lack '{min(missing)}': they are of another algorithm or number of layers.")
        for name, parameter in own.items():
            if parameter.shape != weights[name].shape:
                raise UserError(
                    f"The weights '{name}' have shape {tuple(weights[name].shape)}, but this team needs "
                    f"{tuple(parameter.shape)}: the number of agents or the sizes of the world differ."
                )
            parameter.copy_(weights[name])
        self.precision.load_state(weights)
        if self.native is not None:
            self.native.take()

    def optimizer_state(self) -> dict[str, Tensor]:
        """All optimizers' moments by name; and the number of updates where targets do not move in every one."""
        self.synchronise()
        state = {
            f"{name}.{key}": value for name, descent in self.descents.items() for key, value in descent.state().items()
        }
        return state if self.config.target_period == 1 else state | {"updates": torch.tensor(self.updates)}

    def load_optimizer_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `optimizer_state` returned."""
        for name, descent in self.descents.items():
            prefix = f"{name}."
            descent.load_state({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
        if "updates" in state:
            self.updates = int(state["updates"])
        if self.native is not None:
            self.native.take()

    def random_state(self) -> dict[str, Tensor]:
        """The states of the noise generators."""
        if self.native is not None:
            return self.native.random_state()
        return {"update": _noise(self.noise).get_state(), "exploration": _noise(self.rollout_noise).get_state()}

    def load_random_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `random_state` returned."""
        if self.native is not None:
            self.native.load_random_state(state)
            return
        _noise(self.noise).set_state(state["update"])
        _noise(self.rollout_noise).set_state(state["exploration"])


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


def _noise(source: NoiseSource) -> torch.Generator:
    assert isinstance(source, Noise)
    return source.generator


def q_loss(critics: JointCritics, batch: Minibatch, target: Tensor) -> Tensor:
    """(N,) mean squared error of each agent's critics, the heads' errors added."""
    error = critics(batch.joint) - target[:, None]  # (N, heads, B)
    return batch.mean(error.square().sum(1))
