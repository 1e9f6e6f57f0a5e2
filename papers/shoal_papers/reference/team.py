"""All agents of the reference behind the loop's team interface; its state has the engine's format.

The engine pads unequal observations and actions with zeros and keeps weights as (networks, in, out), its critics' first
layer as (in, networks, out); `nn.Linear` keeps (out, in). Padding is zero there and does not exist here.
Shape letters: C networks, I inputs, U outputs, N agents, O observation, A action, J joint.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.algorithms.base import Arrays, BaseTeam, Phase
from shoal.algorithms.config import LearnConfig
from shoal.envs.base import EnvSpec
from shoal.errors import UserError
from shoal.networks.actors import Noise, load_noise_states, noise_states
from shoal.networks.layout import Widths, actor_names, actor_widths, critic_names, critic_widths, initial_random
from shoal.networks.stacked import to_arrays, to_tensors
from shoal.seeding import stream_seed
from shoal_papers.reference.agent import Agent, gumbel, start
from shoal_papers.reference.algorithms import MADDPGAgent, MASACAgent
from shoal_papers.reference.replay import ListSampler, Replays

Order = Literal["agents", "phases"]


class ReferenceTeam(BaseTeam):
    """A list of agents.

    `order="agents"` is the measured code's: each agent is updated completely before the next one, so later agents see
    the new targets of earlier ones. `order="phases"` is the engine's: all critics, then all actors, then all
    targets; with the same indices and noise it gives the engine's results.
    """

    def __init__(
        self, spec: EnvSpec, config: LearnConfig, seed: int, device: torch.device, order: Order = "agents"
    ) -> None:
        if not spec.discrete:
            raise UserError(f"The reference implementation plays choices only, but {spec.name} takes boxes.")
        super().__init__(spec, config)
        self.device, self.order = device, order
        self.noise = Noise(stream_seed(seed, "update"), device)
        self.rollout_noise = Noise(stream_seed(seed, "exploration"), device)
        kind = MADDPGAgent if config.algorithm == "maddpg" else MASACAgent
        self.losses = kind.losses
        self.agents: list[Agent] = [kind(i, spec, config, device) for i in range(spec.agents)]
        random = initial_random(seed)
        start([agent.actor for agent in self.agents], random)
        start([critic for agent in self.agents for critic in agent.critics], random)
        for agent in self.agents:
            agent.copy_targets()
        self.targets = {"target_critics": "critics"}
        if self.agents[0].uses_target_actor:
            self.targets["target_actors"] = "actors"
        layers, critics = len(config.hidden) + 1, critic_widths(spec, config.hidden, kind.critic_count)
        self._actors = Stacking(actor_names(layers), actor_widths(spec, config.hidden), first_axis=0)
        self._critics = Stacking(critic_names(layers), critics, first_axis=1)  # all heads of the first agent first

    # ---- acting ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(self, observation: NDArray[np.float32], explore: bool = True) -> NDArray[np.float32]:
        """Actions (E, N, A) for observations (E, N, O), agent by agent: soft samples, or the most likely choices."""
        actions = np.zeros((len(observation), self.spec.agents, self.spec.action_size), np.float32)
        for i, agent in enumerate(self.agents):
            size, choices = self.spec.observation_sizes[i], self.spec.action_sizes[i]
            logits = agent.rollout_actor(torch.from_numpy(observation[:, i, :size]).to(self.device))
            if explore:
                chosen = gumbel(logits, self.rollout_noise)
            else:
                chosen = nn.functional.one_hot(logits.argmax(-1), choices).float()
            actions[:, i, :choices] = chosen.cpu().numpy()
        return actions

    # ---- learning ----------------------------------------------------------------------------------------------------

    def update(self, ring: Replays, sampler: ListSampler, rng: np.random.Generator, phase: Phase) -> Arrays:
        if self.order == "agents":
            losses = [agent.update(self.agents, ring, sampler, rng, self.noise, phase) for agent in self.agents]
        else:
            losses = self._update_by_phases(ring, sampler, rng, phase)
        return to_arrays({name: torch.stack([loss[name] for loss in losses]) for name in losses[0]})

    def _update_by_phases(
        self, replays: Replays, sampler: ListSampler, rng: np.random.Generator, phase: Phase
    ) -> list[dict[str, Tensor]]:
        batches = [agent.sample_minibatch(replays, sampler, rng, phase) for agent in self.agents]
        turns = list(zip(self.agents, batches, strict=True))
        q = [agent.update_critics(self.agents, batch, self.noise, phase) for agent, batch in turns]
        p = [agent.update_actor(batch, self.noise, phase) for agent, batch in turns]
        for agent in self.agents:
            agent.update_targets(phase)
        return [critic | actor for critic, actor in zip(q, p, strict=True)]

    # ---- state, in the engine's form ---------------------------------------------------------------------------------

    def _networks(self) -> dict[str, tuple["Stacking", list[nn.Sequential]]]:
        """The engine's name of each kind of network, and the agents' networks of that kind."""
        networks = {
            "actors": (self._actors, [agent.actor for agent in self.agents]),
            "critics": (self._critics, [critic for agent in self.agents for critic in agent.critics]),
            "target_critics": (self._critics, [critic for agent in self.agents for critic in agent.target_critics]),
        }
        if self.agents[0].uses_target_actor:
            networks["target_actors"] = (self._actors, [agent.target_actor for agent in self.agents])
        return networks

    def weights(self) -> Arrays:
        """All networks' parameters under the engine's names, stacked."""
        return to_arrays(
            {
                f"{kind}.{name}": array
                for kind, (stacking, networks) in self._networks().items()
                for name, array in zip(stacking.names, stacking.pack(parameters(networks)), strict=True)
            }
        )

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, NDArray]) -> None:
        """Restore what `weights` returned, here or in the engine; other shapes or names are refused."""
        for name, own in self.weights().items():
            if name not in weights or weights[name].shape != own.shape:
                raise UserError(
                    f"The weights lack '{name}' of shape {tuple(own.shape)}: they are from another algorithm, world or "
                    "number of agents or layers."
                )
        tensors_by_name = to_tensors(weights)
        for kind, (stacking, networks) in self._networks().items():
            own_parameters = parameters(networks)
            given = stacking.unpack([tensors_by_name[f"{kind}.{name}"] for name in stacking.names], own_parameters)
            for own_tensors, tensors in zip(own_parameters, given, strict=True):
                for parameter, tensor in zip(own_tensors, tensors, strict=True):
                    parameter.copy_(tensor)

    def _optimizers(self) -> dict[str, list[torch.optim.Adam]]:
        return {
            "actors": [agent.actor_adam for agent in self.agents],
            "critics": [adam for agent in self.agents for adam in agent.critic_adams],
        }

    def optimizer_state(self) -> Arrays:
        """All optimizers' moments and step counts under the engine's names; all agents have the same step count."""
        state: dict[str, Tensor] = {}
        for kind, adams in self._optimizers().items():
            stacking, networks = self._networks()[kind]
            own = parameters(networks)
            for key, field in MOMENTS.items():
                moments = [
                    [adam.state[p][field] if p in adam.state else torch.zeros_like(p) for p in tensors]
                    for adam, tensors in zip(adams, own, strict=True)
                ]
                state |= {f"{kind}.{k}.{key}": array for k, array in enumerate(stacking.pack(moments))}
            first = adams[0].state.get(own[0][0], {})
            steps = float(first.get("step", 0))
            state |= {f"{kind}.{k}.step": torch.tensor(steps, dtype=torch.float32) for k in range(len(own[0]))}
        return to_arrays(state)

    def load_optimizer_state(self, state: Mapping[str, NDArray]) -> None:
        given = to_tensors(state)
        for kind, adams in self._optimizers().items():
            stacking, networks = self._networks()[kind]
            own = parameters(networks)
            count = range(len(own[0]))
            moments = {
                field: stacking.unpack([given[f"{kind}.{k}.{key}"] for k in count], own)
                for key, field in MOMENTS.items()
            }
            for c, (adam, tensors) in enumerate(zip(adams, own, strict=True)):
                for k, parameter in enumerate(tensors):
                    adam.state[parameter] = {"step": given[f"{kind}.{k}.step"].float().clone().view(())} | {
                        field: arrays[c][k].to(self.device).clone(memory_format=torch.contiguous_format)
                        for field, arrays in moments.items()
                    }

    def random_state(self) -> Arrays:
        return noise_states(self._noises())

    def load_random_state(self, state: Mapping[str, NDArray]) -> None:
        load_noise_states(self._noises(), state)

    def _noises(self) -> dict[str, Noise]:
        return {"update": self.noise, "exploration": self.rollout_noise}


MOMENTS = {"mean": "exp_avg", "square": "exp_avg_sq"}  # the engine's and torch's names of Adam's moments


# ---- one network per agent, stacked --------------------------------------------------------------------------------

PerNetwork = Sequence[Sequence[Tensor]]
"""Per network its parameters, or tensors of their shapes: weight, bias, weight, bias, …"""


class Stacking:
    """The layout of all agents' networks in the engine's arrays, parameter by parameter."""

    def __init__(self, names: list[str], widths: Widths, first_axis: int) -> None:
        self.names = names
        self.real: list[Tensor] = []  # (C, I, U) of a weight, (C, 1, U) of a bias
        for before, after in itertools.pairwise(map(torch.from_numpy, widths)):
            self.real += [before[:, :, None] & after[:, None, :], after[:, None, :]]
        self.axes = [first_axis] + [0] * (len(names) - 1)  # the axis along which networks are stacked

    def pack(self, tensors: PerNetwork) -> list[Tensor]:
        """One stacked array per parameter."""
        packed = []
        for real, axis, values in zip(self.real, self.axes, zip(*tensors, strict=True), strict=True):
            stacked = torch.zeros(real.shape)
            stacked[real] = torch.cat([_turned(value.detach().cpu()).flatten() for value in values])
            packed.append(stacked.movedim(0, axis).contiguous())
        return packed

    def unpack(self, packed: Sequence[Tensor], like: PerNetwork) -> list[list[Tensor]]:
        """The tensors of each network, shaped as in `like`."""
        return [
            [
                _turned(stacked.movedim(axis, 0)[c][real[c]].view(tuple(reversed(own.shape))))
                for stacked, axis, real, own in zip(packed, self.axes, self.real, network, strict=True)
            ]
            for c, network in enumerate(like)
        ]


def _turned(parameter: Tensor) -> Tensor:
    """(out, in) to (in, out) and back; biases are unchanged."""
    return parameter.mT if parameter.dim() == 2 else parameter


def parameters(networks: Sequence[nn.Sequential]) -> list[list[Tensor]]:
    """Each network's parameters."""
    return [list(network.parameters()) for network in networks]
