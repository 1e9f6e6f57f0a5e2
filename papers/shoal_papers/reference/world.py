"""One world of the mpe2 package behind Shoal's interface for worlds, with E = 1 copy.

Agents, observations, rewards and scripted prey are those of Shoal's own world of the same name; the physics, the loops
and their run time are mpe2's. Shape letters: N agents, O observation, P predators.
"""

import importlib
import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.envs.base import Array, EnvSpec, Step, one_hot, random_actions
from shoal.envs.particle import ACTIONS, ParticleWorld
from shoal.envs.physics import COVERED, FACMAC_CANDIDATES, PREY_DIRECTIONS, PREY_LOOK
from shoal.errors import UserError, install
from shoal.seeding import stream, stream_seed
from shoal.training.config import TrainConfig
from shoal.training.evaluation import build_env

PREDATOR_SIZE = 0.075

Floats = NDArray[np.float64]
PreyRule = Callable[[Any, Floats, np.random.Generator], Floats]
"""Maps a prey of mpe2, the predators' positions (P, 2) and a random generator to the prey's force (2,)."""


def make_world(config: TrainConfig) -> "MpeWorld":
    """The configured particle world in mpe2."""
    if config.rules != "mpe2":
        raise UserError(
            f"`rules` is '{config.rules}', but the reference implementation plays by the rules of mpe2 only."
        )
    ours = build_env(config, copies=1, seed=config.seed, stagger=False)
    if not isinstance(ours, ParticleWorld):
        ours.close()
        raise UserError(
            f"`env` is '{config.env}', but the reference implementation plays cooperative-navigation and "
            "predator-prey only."
        )
    there = Counter(entity.kind for entity in ours.entities)
    if config.env == "predator-prey":
        counts = {"num_adversaries": there["predator"], "num_good": there["prey"], "num_obstacles": there["obstacle"]}
        env = parallel_env("simple_tag_v3", ours.spec, **counts)
    else:
        if there["landmark"] != there["agent"]:
            raise UserError(
                f"`landmarks` is {there['landmark']}, but the reference implementation has as many landmarks as "
                f"agents: {there['agent']}."
            )
        env = parallel_env("simple_spread_v3", ours.spec, N=there["agent"])
    rules: dict[str, PreyRule] = {
        "scripted": scripted_prey,
        "random": random_prey,
        "facmac": lambda prey, predators, rng: (config.prey_scale or 1.0) * facmac_prey(prey, predators, rng),
    }
    return MpeWorld(ours.spec, env, config.seed, rules.get(config.prey))


def parallel_env(module: str, spec: EnvSpec, **counts: int) -> Any:
    """An mpe2 environment that takes soft vectors as forces."""
    try:
        with redirect_stdout(sys.stderr), warnings.catch_warnings():  # pygame prints a greeting on standard output
            warnings.simplefilter("ignore")
            make = importlib.import_module(f"mpe2.{module}").parallel_env
            return make(**counts, max_cycles=spec.episode_length, continuous_actions=True)
    except ImportError as error:
        raise UserError(
            f"The reference implementation plays in mpe2's worlds, but {error.name or 'mpe2'} is not installed; "
            f"{install('pettingzoo')}."
        ) from None


class MpeWorld:
    """One mpe2 environment as a `VectorEnv`. Its agents are mpe2's first N; the rest are scripted prey."""

    copies = 1

    def __init__(self, spec: EnvSpec, env: Any, seed: int, prey_rule: PreyRule | None = None) -> None:
        self.spec = spec
        self._env = env
        self._world = env.unwrapped.world
        self._idle = {name: np.zeros(ACTIONS, np.float32) for name in env.possible_agents}  # scripted prey
        self._last_step = spec.episode_length or 0
        self._sampler = stream(seed, "sampled actions")
        self._predators = [body for body in self._world.agents if getattr(body, "adversary", False)]
        self._prey = [body for body in self._world.agents if self._predators and not body.adversary]
        self._caught = np.zeros(len(self._prey), np.bool_)  # prey touched in this episode
        if prey_rule is not None:
            self._script_prey(prey_rule)
        self._observe(env.reset(seed=stream_seed(seed, "envs"))[0])

    def _script_prey(self, rule: PreyRule) -> None:
        """Give every prey a callback, which mpe2 calls for the prey's force before anything moves."""
        bodies, agents = self._world.agents, self.spec.agents

        def push(prey: Any, world: Any) -> Any:
            predators = np.array([body.state.p_pos for body in bodies[:agents]])
            prey.action.u = rule(prey, predators, self._random)
            return prey.action

        for prey in bodies[agents:]:
            prey.action_callback = push

    @property
    def _random(self) -> np.random.Generator:
        """Draws initial states, and the prey's forces where they are random."""
        return self._env.unwrapped.np_random

    @property
    def episode_step(self) -> NDArray[np.int64]:
        """(1,) steps since the start of the episode."""
        return np.array([self._env.unwrapped.steps])

    def reset(self) -> Array:
        """Start a new episode and return the observations (1, N, O)."""
        self._caught[:] = False
        return self._observe(self._env.reset()[0])

    def _observe(self, observations: dict[str, Array]) -> Array:
        """(1, N, O), padded with zeros."""
        rows = np.zeros((1, self.spec.agents, self.spec.observation_size), np.float32)
        for i, (name, size) in enumerate(zip(self.spec.agent_names, self.spec.observation_sizes, strict=True)):
            rows[0, i, :size] = observations[name]
        return rows

    def sample_actions(self) -> Array:
        """Uniformly random choices, one-hot (1, N, 5)."""
        return random_actions(self.spec, 1, self._sampler)

    def step(self, actions: ArrayLike) -> Step:
        """Play one step: actions (1, N, 5), one-hot or soft, or whole numbers (1, N)."""
        vectors = np.asarray(one_hot(self.spec, 1, actions))
        pushes = np.clip(vectors[0], 0, 1).astype(np.float32)  # mpe2 does so too, but warns each time
        played = self._idle | dict(zip(self.spec.agent_names, pushes, strict=True))
        observations, rewards, *_ = self._env.step(played)
        self._mark_caught()
        reward = np.array([[rewards[name] for name in self.spec.agent_names]], np.float32)
        final_observation = self._observe(observations)
        ended = self.episode_step >= self._last_step  # (1,)
        metrics = np.array([[self._metric() if ended[0] else 0.0]], np.float32)
        observation = self.reset() if ended[0] else final_observation
        nobody, everybody = np.zeros(reward.shape, np.bool_), np.ones(reward.shape, np.bool_)
        return Step(observation, reward, nobody, ended, everybody, ended.copy(), final_observation, metrics)

    def _mark_caught(self) -> None:
        """Remember the prey that a predator touches now."""
        for k, prey in enumerate(self._prey):
            touch = (PREDATOR_SIZE + prey.size) ** 2
            self._caught[k] |= squares(positions([prey]), positions(self._predators)).min() < touch

    def _metric(self) -> float:
        """What is reported of an episode at its end: prey that were touched in it, or landmarks covered."""
        if self._prey:
            return float(self._caught.sum())
        nearest = squares(positions(self._world.landmarks), positions(self._world.agents)).min(1)
        return float((nearest < COVERED**2).sum())

    def state(self) -> dict[str, NDArray]:
        """Positions, velocities, the step, the prey caught and the random generator."""
        entities = self._world.entities
        return {
            "position": np.array([entity.state.p_pos for entity in entities]),
            "velocity": np.array([entity.state.p_vel for entity in entities]),
            "episode_step": self.episode_step,
            "random": np.frombuffer(json.dumps(self._random.bit_generator.state).encode(), np.uint8),
        } | ({"caught": self._caught.copy()} if self._prey else {})

    def load_state(self, state: dict[str, NDArray]) -> None:
        """Continue exactly from what `state` returned."""
        entities = self._world.entities
        if not self.state().keys() <= state.keys() or state["position"].shape != (len(entities), 2):
            raise UserError(f"the saved state of {self.spec.name} does not fit this world of {len(entities)} bodies.")
        self.reset()  # mpe2's other state is that of a new episode
        for entity, position, velocity in zip(entities, state["position"], state["velocity"], strict=True):
            entity.state.p_pos, entity.state.p_vel = position.copy(), velocity.copy()
        self._caught[:] = state.get("caught", False)
        self._env.unwrapped.steps = int(state["episode_step"][0])
        self._random.bit_generator.state = json.loads(state["random"].tobytes())

    def close(self) -> None:
        """Close mpe2's environment."""
        self._env.close()


# ---------------------------------------------------------------------------------------------- prey


def scripted_prey(prey: Any, predators: Floats, rng: np.random.Generator) -> Floats:
    """Shoal's rule: rest or one of 16 directions, towards the best position 0.3 ahead; ties go to the first."""
    points = prey.state.p_pos + PREY_LOOK * PREY_DIRECTIONS  # (17, 2)
    nearest = np.sqrt(squares(points, predators).min(1))
    outside = border(np.abs(points))
    return prey.accel * PREY_DIRECTIONS[np.argmax(nearest - outside[:, 0] - outside[:, 1])]


def facmac_prey(prey: Any, predators: Floats, rng: np.random.Generator) -> Floats:
    """FACMAC's rule: of 100 random offsets in the unit disc, the one that ends farthest from the nearest predator.

    Offsets that end inside a predator do not count; if none is left the force is zero.
    """
    radius, angle = np.sqrt(rng.random(FACMAC_CANDIDATES)), 2 * np.pi * rng.random(FACMAC_CANDIDATES)
    offsets = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)  # (100, 2)
    to_predators = squares(prey.state.p_pos + offsets, predators)  # (100, P)
    hunter = np.argmin(squares(prey.state.p_pos[None], predators)[0])
    inside = (to_predators < (PREDATOR_SIZE + prey.size) ** 2).any(1)
    score = np.where(inside, -1.0, to_predators[:, hunter])
    return offsets[np.argmax(score)] if score.max() >= 0 else np.zeros(2)


def random_prey(prey: Any, predators: Floats, rng: np.random.Generator) -> Floats:
    """A force drawn from U(-1, 1) on each axis, times the acceleration."""
    return prey.accel * rng.uniform(-1, 1, 2)


def positions(bodies: list[Any]) -> Floats:
    """(bodies, 2)."""
    return np.array([body.state.p_pos for body in bodies])


def squares(points: Floats, predators: Floats) -> Floats:
    """(points, P) squared distances."""
    way = points[:, None] - predators[None]
    return way[..., 0] * way[..., 0] + way[..., 1] * way[..., 1]


def border(s: Floats) -> Floats:
    """The prey's boundary penalty for a coordinate of absolute value s: zero inside, increasing outside."""
    return np.where(s < 0.9, 0.0, np.where(s < 1.0, (s - 0.9) * 10.0, np.minimum(np.exp(2.0 * s - 2.0), 10.0)))
