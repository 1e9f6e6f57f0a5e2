"""Running statistics of observations and rewards, and normalisation by them.

As VecNormalize of Stable-Baselines3: the ring keeps raw values, which are normalised with the current statistics when
they are sampled. Agents of one kind share statistics.
Shape letters: E copies, N agents, K kinds of agents, O observation, S values, J joint, M mini-batches, B batch.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.compiled import njit
from shoal.envs.base import EnvSpec, Step
from shoal.errors import UserError
from shoal.inference.policy import Normaliser
from shoal.replay.gather import Batch, Bools, Floats, Ints, Returns

EPSILON, CLIP, WEIGHT = 1e-8, 10.0, 1e-4
"""Added to variances; largest normalised value; weight of the initial mean 0 and variance 1."""

NOBODY: Bools = np.zeros((0, 0), np.bool_)


class Moments(NamedTuple):
    """Mean and variance of S values, for each of K kinds."""

    mean: NDArray[np.float64]  # (K, S)
    square: NDArray[np.float64]  # (K, S)  sum of the squared deviations from it
    weight: NDArray[np.float64]  # (K,)  of how many values

    @property
    def var(self) -> NDArray[np.float64]:
        """(K, S)."""
        return self.square / self.weight[:, None]


class Normalisation:
    """Normalises a team's observations, rewards, both, or nothing."""

    def __init__(self, spec: EnvSpec, observations: bool, rewards: bool, discount: float) -> None:
        if observations and (spec.whole_numbers or spec.masked):
            what = "begin with action masks" if spec.masked else "are one-hot"
            raise UserError(
                f"`normalize_observations` does not apply to {spec.name}, whose observations {what}; leave it out."
            )
        self.spec, self.discount, self.kinds = spec, discount, np.array(spec.kinds)  # (N,)
        sizes = {"observations": spec.observation_size * observations, "rewards": 1 * rewards}
        kinds = max(spec.kinds) + 1
        self.moments = {
            name: Moments(np.zeros((kinds, size)), np.full((kinds, size), WEIGHT), np.full(kinds, WEIGHT))
            for name, size in sizes.items()
            if size
        }
        self.returns = np.zeros((0, spec.agents))  # (E, N)  each agent's discounted rewards in its episode so far

    # ---- rollouts ----------------------------------------------------------------------------------------------------

    def begin(self, observation: Floats) -> None:
        """Take the first observations of a run (E, N, O)."""
        self.returns = np.zeros(observation.shape[:2])
        if "observations" in self.moments:
            everyone = np.ones(observation.shape[:2], np.bool_)
            add_values(self.moments["observations"], self.kinds, observation, everyone)

    def add(self, step: Step) -> None:
        """Take a step of all copies; rewards are scaled by the deviation of their discounted sum."""
        if "observations" in self.moments:
            add_values(self.moments["observations"], self.kinds, step.observation, step.alive | step.ended[:, None])
        if "rewards" in self.moments:
            self.returns = self.returns * self.discount + step.reward
            add_values(self.moments["rewards"], self.kinds, self.returns[..., None], step.alive)
            self.returns[step.ended] = 0

    # ---- what networks see -------------------------------------------------------------------------------------------

    def observed(self, observation: Floats) -> Floats:
        """Observations (E, N, O), normalised."""
        if "observations" not in self.moments:
            return observation
        seen = np.array(observation, np.float32, order="C")
        rows = seen.reshape(len(seen), self.spec.agents * self.spec.observation_size)  # the loop checks no bounds
        normalise_rows(rows, self.moments["observations"], self.kinds, NOBODY)
        return seen

    def apply(self, batch: Batch | Returns) -> None:
        """Normalise mini-batches in place; zero observations of departed agents stay zero."""
        if "observations" in self.moments:
            gone = left = NOBODY
            if not self.spec.fixed_length:
                stays = batch.next_alive if isinstance(batch, Returns) else batch.alive & ~batch.terminated
                gone, left = (~there.reshape(-1, self.spec.agents) for there in (batch.alive, stays))
            for joint, absent in ((batch.joint, gone), (batch.next_joint, left)):
                normalise_rows(joint.reshape(-1, joint.shape[-1]), self.moments["observations"], self.kinds, absent)
        if "rewards" in self.moments:
            deviation = np.sqrt(self.moments["rewards"].var[self.kinds, 0] + EPSILON)  # (N,)
            np.clip(batch.reward / deviation, -CLIP, CLIP, out=batch.reward)

    @property
    def normaliser(self) -> Normaliser | None:
        """The same for observations of an exported policy."""
        if (moments := self.moments.get("observations")) is None:
            return None
        mean, var = (values[self.kinds].astype(np.float32) for values in (moments.mean, moments.var))
        return Normaliser(mean, var, EPSILON, CLIP)

    # ---- state -------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray]:
        """The statistics by name."""
        return {
            f"statistics.{name}.{field}": array.copy()
            for name, moments in self.moments.items()
            for field, array in moments._asdict().items()
        }

    def load_state(self, state: Mapping[str, NDArray]) -> None:
        """Restore what `state` returned."""
        for name, moments in self.moments.items():
            for field, array in moments._asdict().items():
                array[:] = state[f"statistics.{name}.{field}"]

    def rollout_state(self) -> dict[str, NDArray]:
        """The state of the copies of a run, besides the statistics."""
        return {"discounted": self.returns} if "rewards" in self.moments else {}

    def load_rollout_state(self, state: Mapping[str, NDArray]) -> None:
        """Restore what `rollout_state` returned."""
        self.returns = state.get("discounted", self.returns)


@njit(cache=True)
def add_values(moments: Moments, kinds: Ints, values: NDArray, counted: Bools) -> None:
    """Add values (E, N, S) of the agents that count (E, N), one after the other (Welford)."""
    mean, square, weight = moments
    for e in range(values.shape[0]):
        for n in range(values.shape[1]):
            if not counted[e, n]:
                continue
            k = kinds[n]
            weight[k] += 1
            for s in range(values.shape[2]):
                before = values[e, n, s] - mean[k, s]
                mean[k, s] += before / weight[k]
                square[k, s] += before * (values[e, n, s] - mean[k, s])


@njit(cache=True)
def normalise_rows(rows: Floats, moments: Moments, kinds: Ints, gone: Bools) -> None:
    """Normalise the observations that joint rows (B, J) begin with, in place.

    The zeros of agents that are `gone` (B, N) stay zeros; `gone` without rows: nobody is.
    """
    mean, square, weight = moments
    agents, size = kinds.size, mean.shape[1]
    centre, scale = np.empty(agents * size, np.float32), np.empty(agents * size, np.float32)
    for n in range(agents):
        for s in range(size):
            k = kinds[n]
            centre[n * size + s] = mean[k, s]
            scale[n * size + s] = 1 / np.sqrt(square[k, s] / weight[k] + EPSILON)
    limit, absent = np.float32(CLIP), np.zeros(agents, np.bool_)
    for b in range(rows.shape[0]):
        row = rows[b]
        for n in range(gone.shape[1]):
            absent[n] = gone[b, n] and not row[n * size : (n + 1) * size].any()
        for i in range(centre.size):  # all agents in one loop, which LLVM vectorises
            value = (row[i] - centre[i]) * scale[i]
            value = limit if value > limit else value
            row[i] = -limit if value < -limit else value
        for n in range(gone.shape[1]):
            if absent[n]:
                row[n * size : (n + 1) * size] = 0
