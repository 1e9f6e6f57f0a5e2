"""A team's update and acting in native code: the same team, learning in `shoal/native` instead of torch.

The torch networks stay the public form of the weights; they are brought up to date when somebody asks for them.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.native.engine import Engine
from shoal.native.maddpg import MADDPG, Settings
from shoal.native.masac import MASAC
from shoal.native.work import MOMENT, SEED
from shoal.networks import Actors, JointCritics
from shoal.replay import Batch, Returns
from shoal.seeding import stream_seed

if TYPE_CHECKING:
    from shoal.algorithms.team import Phase, Team


class NativeUpdate:
    """Learns and acts for a torch team, and gives it the weights when they are asked for."""

    def __init__(self, team: "Team", seed: int, threads: int) -> None:
        self.team = team
        dtype = np.float64 if next(team.actors.parameters()).dtype == torch.float64 else np.float32
        hard = team.actors.hard
        settings = Settings(**{field.name: getattr(team.config, field.name) for field in fields(Settings)})
        if team.config.algorithm == "masac":
            wanted = tuple(team.target_entropy.flatten().tolist()) if team.config.learn_entropy else ()  # type: ignore[attr-defined]
            algorithm: MADDPG = MASAC(team.spec, settings, hard, dtype, wanted)
        else:
            algorithm = MADDPG(team.spec, settings, hard, dtype)
        self.engine = Engine(algorithm, stream_seed(seed, "update"), stream_seed(seed, "exploration"), threads)
        self._stale = False  # whether the torch networks are older than the native ones
        flat = [parameter.detach() for parameter in team.rollout_actors.flat]
        self._policies = [_of(flat, [0] * len(flat), number) for number in range(team.spec.agents)]
        self.take()

    def learn(self, batch: Batch | Returns, phase: "Phase") -> dict[str, Tensor]:
        """Update all agents once on this mini-batch; returns each agent's losses (N,)."""
        phase("target Q: next action")
        losses = self.engine.learn(batch)
        shares = self.engine.shares()
        if (divide := getattr(phase, "divide", None)) is not None:  # a clock: phases of different agents overlap
            divide(shares)
        phase("other")
        self._stale = True
        return {name: torch.from_numpy(loss) for name, loss in losses.items()}

    def act(self, observation: NDArray[np.float32], explore: bool) -> NDArray[np.float32]:
        """Actions (E, N, A) for observations (E, N, O)."""
        return self.engine.act(observation, explore)

    # ---- between torch and native memory -----------------------------------------------------------------------------

    def give(self) -> None:
        """Bring the torch networks and optimizers up to date."""
        if not self._stale:
            return
        self._stale = False
        with torch.no_grad():
            for name, number, parts in self._places():
                for of, tensors in parts.items():
                    for tensor, array in zip(tensors, self.engine.read(name, number, of), strict=True):
                        tensor.copy_(torch.from_numpy(array))
            for tensor, values in self._temperatures():
                tensor.copy_(torch.from_numpy(values.reshape(tensor.shape)))
        for descent in self.team.descents.values():
            for step in descent.steps:
                step.fill_(float(self.engine.counters[MOMENT]))
        self.team.updates = int(self.engine.counters[MOMENT])

    def give_policies(self) -> None:
        """Bring the weights of the torch policies that play up to date."""
        name = "target_actors" if self.team.rollout_actors is not self.team.actors else "actors"
        with torch.no_grad():
            for number, tensors in enumerate(self._policies):
                for tensor, array in zip(tensors, self.engine.read(name, number), strict=True):
                    tensor.copy_(torch.from_numpy(array))

    def take(self) -> None:
        """Take over the weights and moments of the torch networks."""
        for name, number, parts in self._places():
            for of, tensors in parts.items():
                self.engine.write(name, number, [tensor.detach().numpy() for tensor in tensors], of)
        for tensor, values in self._temperatures():
            values[:] = tensor.detach().numpy().reshape(-1)
        self.engine.counters[MOMENT] = int(next(iter(self.team.descents.values())).steps[0])
        self.engine.prepare()
        self._stale = False

    def _places(self) -> list[tuple[str, int, dict[str, list[Tensor]]]]:
        """Every network by name and number, with views of its arrays in torch: weights, and Adam's moments of them."""
        places = []
        for name in self.engine.algorithm.networks:
            network = self.team.networks[name]
            assert isinstance(network, Actors | JointCritics)
            stacked = network.stacked_parameters()
            axes = [axis for _, axis in stacked]
            kinds = {"weights": [parameter.detach() for parameter, _ in stacked]}
            if name in self.team.descents:
                descent = self.team.descents[name]
                kinds |= {"mean": descent.means, "square": descent.squares}
            for number in range(self.engine.algorithm.networks[name].count):
                places.append((name, number, {of: _of(tensors, axes, number) for of, tensors in kinds.items()}))
        return places

    def _temperatures(self) -> list[tuple[Tensor, NDArray]]:
        """Tensors of the temperatures, each with the native numbers."""
        algorithm, n = self.engine.algorithm, self.team.spec.agents
        if "temperature" not in self.team.descents:
            return []
        assert isinstance(algorithm, MASAC)
        descent, values = self.team.descents["temperature"], algorithm.program.values
        tensors = (descent.parameters[0].detach(), descent.means[0], descent.squares[0])
        places = (algorithm.log_alpha, algorithm.alpha_mean, algorithm.alpha_square)
        return [(tensor, values(place)[:n]) for tensor, place in zip(tensors, places, strict=True)]

    # ---- noise -------------------------------------------------------------------------------------------------------

    def random_state(self) -> dict[str, Tensor]:
        """Seeds and numbers of draws."""
        engine = self.engine
        counters = {"update": engine.counters, "exploration": engine.rollout_counters}
        return {name: torch.from_numpy(own.copy()) for name, own in counters.items()}

    def load_random_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `random_state` returned."""
        self.engine.counters[SEED] = int(state["update"][SEED])
        self.engine.rollout_counters[:] = state["exploration"].numpy()


def _of(tensors: list[Tensor], axes: list[int], number: int) -> list[Tensor]:
    """Views of one network of a stack: weights (inputs, units), biases (units,)."""
    own = [tensor.select(axis, number) for tensor, axis in zip(tensors, axes, strict=True)]
    return [array if k % 2 == 0 else array.view(-1) for k, array in enumerate(own)]
