"""A team that learns and acts in native code (`shoal/native`), on the CPU and in full precision; imports no torch.

Shape letters: E copies, N agents, M mini-batches, B batch rows, C networks in a stack, O observation, A action.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.base import Arrays, BaseTeam, Phase, check_team_fits, check_weights, outcomes_of, target_entropies
from shoal.algorithms.config import LearnConfig
from shoal.envs.base import EnvSpec
from shoal.native.maddpg import MADDPG
from shoal.native.masac import MASAC
from shoal.native.runner import Rounds, Runner
from shoal.native.work import MOMENT
from shoal.networks import layout
from shoal.networks.layout import Kind
from shoal.replay import Batch, Returns, Ring, Sampler
from shoal.seeding import stream_seed

FIRST, FIRST_BIAS = 0, 1  # among the arrays of critics


class NativeTeam(BaseTeam):
    """Networks and their targets in native memory."""

    def __init__(
        self, spec: EnvSpec, config: LearnConfig, seed: int, threads: int = 1, dtype: type = np.float32
    ) -> None:
        super().__init__(spec, config)
        check_team_fits(spec, config)
        if config.algorithm == "masac":
            wanted = np.array(target_entropies(spec, config) if config.learn_entropy else [], dtype).tolist()
            self.algorithm: MADDPG = MASAC(spec, config, self.hard, dtype, tuple(wanted))
        else:
            self.algorithm = MADDPG(spec, config, self.hard, dtype)
        self.losses, networks = self.algorithm.losses, self.algorithm.networks
        self.targets = {name: name.removeprefix("target_") for name in networks if name.startswith("target_")}
        learns_entropy = config.algorithm == "masac" and config.learn_entropy
        self._parts = [*networks, "temperature"] if learns_entropy else [*networks]  # of the state, by name
        self._learned = [name for name in self._parts if name not in self.targets]
        program = self.algorithm.program
        derived = program.piece_count  # after those of an update
        self.algorithm.record_derived()
        acting = program.piece_count
        self._seen = program.buffer(spec.agents * spec.observation_size)
        self._chosen = program.buffer(spec.agents * spec.action_size)
        self._acting = {
            explore: self.algorithm.record_acting(self._seen, self._chosen, explore) for explore in (True, False)
        }
        self.runner = Runner(program, threads)
        # of noise: its seed, and how many updates, or steps of rollouts, there have been
        self.counters = np.array([stream_seed(seed, "update"), 0], np.int64)
        self.rollout_counters = np.array([stream_seed(seed, "exploration"), 0], np.int64)
        self._update = self.runner.rounds(0, derived, self.counters)
        self._prepare = self.runner.rounds(derived, acting)
        self._act_rounds: dict[tuple[int, bool], Rounds] = {}  # by copies, and whether there is noise
        self._set_initial_weights(seed)

    def _set_initial_weights(self, seed: int) -> None:
        """The numbers that a `Team` of this seed begins with; targets are equal to their online networks."""
        random, config, algorithm = layout.initial_random(seed), self.config, self.algorithm
        actors = layout.actor_widths(self.spec, config.hidden, algorithm.head_width, config.shared_actors)
        sizes = (self.spec, config.critic_layers, algorithm.heads, 1, config.shared_critics)
        initial = {"actors": layout.initial_layers(actors, random)}
        if config.critic == "pooled":
            embedding, rest = layout.pooled_widths(*sizes)
            first, bias = (
                array.reshape(len(rest[0]), -1, array.shape[-1]) for array in layout.initial_layers(embedding, random)
            )
            initial["critics"] = [first, bias, *layout.initial_layers(rest, random)]
        else:
            initial["critics"] = layout.initial_layers(layout.critic_widths(*sizes), random)
        for name, networks in algorithm.networks.items():
            for number in range(networks.count):
                arrays = [stacked[number] for stacked in initial[self.targets.get(name, name)]]
                networks.shape.write(networks.numbers(number), arrays)
        self.runner.run(self._prepare, alone=True)

    @property
    def kind(self) -> Kind:
        if self.spec.discrete:
            return "categorical"
        return "gaussian" if self.config.algorithm == "masac" else "deterministic"

    # ---- acting and learning -----------------------------------------------------------------------------------------

    def act(self, observation: NDArray[np.float32], explore: bool = True) -> NDArray[np.float32]:
        spec, program = self.spec, self.algorithm.program
        seen = np.ascontiguousarray(observation, program.dtype)
        if seen.ndim != 3 or seen.shape[1:] != (spec.agents, spec.observation_size):  # native code checks nothing
            raise ValueError(f"observations have shape {seen.shape}, not (E, {spec.agents}, {spec.observation_size})")
        copies = len(seen)
        actions: NDArray = np.empty((copies, spec.agents, spec.action_size), program.dtype)
        if (copies, explore) not in self._act_rounds:
            first, done = program.piece_count, program.counter()
            for span in self._acting[explore]:
                program.piece(span, tells=[done], rows=(0, copies), alone=True)
            self._act_rounds[copies, explore] = self.runner.rounds(first, counters=self.rollout_counters)
        self.runner.bind({self._seen: seen, self._chosen: actions}, alone=True)
        self.rollout_counters[MOMENT] += explore
        self.runner.run(self._act_rounds[copies, explore], alone=True)
        return actions

    def update(self, ring: Ring, sampler: Sampler, rng: np.random.Generator, phase: Phase) -> Arrays:
        phase("mini-batch sampling")
        return self.learn(self.draw(ring, sampler, rng), phase)

    def learn(self, batch: Batch | Returns, phase: Phase) -> Arrays:
        """Update all agents once on this mini-batch; returns each agent's losses (N,)."""
        phase("target Q: next action")
        algorithm, n = self.algorithm, self.spec.agents
        if batch.joint.shape != (algorithm.minibatches, algorithm.batch, algorithm.joint_size):
            raise ValueError(f"the mini-batch is {batch.joint.shape}")
        arrays = (batch.joint, batch.next_joint, batch.reward)
        self.runner.bind(dict(zip((algorithm.joint, algorithm.next_joint, algorithm.reward), arrays, strict=True)))
        self._take_outcomes(batch)
        self.counters[MOMENT] += 1
        self.runner.run(self._update)
        losses = algorithm.program.values(algorithm.loss)
        if (divide := getattr(phase, "divide", None)) is not None:  # a clock: phases of different agents overlap
            divide(self.runner.shares())
        phase("other")
        return {name: losses[k * n : (k + 1) * n].copy() for k, name in enumerate(self.losses)}

    def _take_outcomes(self, batch: Batch | Returns) -> None:
        """Discounts and weights of the rows, where they are not the same in every mini-batch."""
        if self.spec.fixed_length and not isinstance(batch, Returns):
            return
        algorithm, rows = self.algorithm, (self.spec.agents, self.algorithm.batch)
        outcomes = outcomes_of(batch, self.spec, self.config.discount)
        taken = {algorithm.bootstrap: np.broadcast_to(outcomes.bootstrap, rows)}
        if outcomes.weight is not None and outcomes.alive is not None and outcomes.next_alive is not None:
            taken[algorithm.weight] = outcomes.weight
            taken |= {algorithm.alive: outcomes.alive, algorithm.next_alive: outcomes.next_alive}
        for operand, array in taken.items():
            algorithm.program.values(operand)[: array.size] = array.reshape(-1)

    # ---- state -------------------------------------------------------------------------------------------------------

    def weights(self) -> Arrays:
        return {
            f"{part}.{name}": array
            for part in self._parts
            for name, array in zip(self._names(part), self._read(part), strict=True)
        }

    def load_weights(self, weights: Mapping[str, NDArray]) -> None:
        check_weights(self.weights(), weights)
        for part in self._parts:
            self._write(part, [weights[f"{part}.{name}"] for name in self._names(part)])
        self.runner.run(self._prepare, alone=True)

    def rollout_arrays(self) -> list[NDArray]:
        algorithm = self.algorithm
        name = next(name for name, own in algorithm.networks.items() if own is algorithm.rollout_actors)
        return [array[algorithm.actor_of] for array in self._read(name)]

    def optimizer_state(self) -> Arrays:
        steps = np.array(self.counters[MOMENT], np.float32)
        state: Arrays = {}
        for part in self._learned:
            for of in ("mean", "square"):
                state |= {f"{part}.{k}.{of}": array for k, array in enumerate(self._read(part, of))}
            state |= {f"{part}.{k}.step": steps for k in range(len(self._names(part)))}
        return state if self.config.target_period == 1 else state | {"updates": np.array(self.counters[MOMENT])}

    def load_optimizer_state(self, state: Mapping[str, NDArray]) -> None:
        for part in self._learned:
            for of in ("mean", "square"):
                self._write(part, [state[f"{part}.{k}.{of}"] for k in range(len(self._names(part)))], of)
        self.counters[MOMENT] = int(state["actors.0.step"])

    def random_state(self) -> Arrays:
        return {"update": self.counters.copy(), "exploration": self.rollout_counters.copy()}

    def load_random_state(self, state: Mapping[str, NDArray]) -> None:
        self.counters[:] = state["update"]  # the number of updates, too: the optimizers' is float32, as in torch
        self.rollout_counters[:] = state["exploration"]

    def _names(self, part: str) -> list[str]:
        """Names of the arrays of a stack of networks, or of the temperatures."""
        if part == "temperature":
            return ["log"]
        layers = len(self.algorithm.networks[part].shape.layers)
        return (layout.actor_names if part.endswith("actors") else layout.critic_names)(layers)

    def _axes(self, part: str) -> list[int]:
        """Along which axis of each array the networks are stacked."""
        return [int(name == "first" and self.config.critic == "joint") for name in self._names(part)]

    def _read(self, part: str, of: str = "weights") -> list[NDArray]:
        """Arrays of a part: weights, or Adam's `mean` or `square` of them."""
        if part == "temperature":
            return [self._temperature(of).copy()]
        networks = self.algorithm.networks[part]
        each = [networks.shape.read(networks.numbers(number, of)) for number in range(networks.count)]
        read = [np.stack(arrays, axis) for arrays, axis in zip(zip(*each, strict=True), self._axes(part), strict=True)]
        if part.endswith("critics"):
            if self.config.critic == "pooled":
                read[FIRST_BIAS] = read[FIRST_BIAS][:, :, None]  # (S, K, 1, H)
                read[FIRST] = read[FIRST].reshape(networks.count, read[FIRST_BIAS].shape[1], -1, read[FIRST].shape[2])
            else:
                read[FIRST_BIAS] = read[FIRST_BIAS][self.algorithm.bias_places][:, None]  # (C, 1, H)
        return read

    def _write(self, part: str, stacked: list[NDArray], of: str = "weights") -> None:
        """Take over what `_read` returned."""
        if part == "temperature":
            self._temperature(of)[:] = stacked[0]
            return
        networks = self.algorithm.networks[part]
        apart = [np.moveaxis(array, axis, 0) for array, axis in zip(stacked, self._axes(part), strict=True)]
        if part.endswith("critics") and self.config.critic == "pooled":
            apart[:2] = [array.reshape(networks.count, -1, array.shape[-1]) for array in apart[:2]]
        elif part.endswith("critics"):
            own = apart[FIRST_BIAS][:, 0]  # (C, H)
            apart[FIRST_BIAS] = np.zeros((networks.count, networks.shape.layers[0].biases, own.shape[1]), own.dtype)
            apart[FIRST_BIAS][self.algorithm.bias_places] = own
        for number in range(networks.count):
            networks.shape.write(networks.numbers(number, of), [array[number] for array in apart])

    def _temperature(self, of: str) -> NDArray:
        """(N, 1) view of the learned temperatures' logarithms, or of Adam's moments of them."""
        algorithm = self.algorithm
        assert isinstance(algorithm, MASAC)
        places = {"weights": algorithm.log_alpha, "mean": algorithm.alpha_mean, "square": algorithm.alpha_square}
        return algorithm.program.values(places[of])[: self.spec.agents, None]
