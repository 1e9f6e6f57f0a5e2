"""The particle worlds: cooperative navigation and predator-prey, E copies in arrays.

Shape letters: E copies, N agents, O observation, K entities. What the worlds do in one step is in `physics`.
"""

import math
import sys
from typing import Any

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.envs import physics
from shoal.envs.base import Array, Copies, Entity, EnvSpec, Step, one_hot, stagger_offsets
from shoal.envs.physics import FACMAC, LEARNED, RANDOM, SCRIPTED, Layout
from shoal.errors import UserError, counted
from shoal.seeding import stream
from shoal.system.memory import check_fits
from shoal.system.threads import share_out

ACTIONS = 5  # do nothing, and a push along each of two axes either way
THREADS_FROM = 400_000  # numbers in all observations of a step; for fewer, waking threads (0.1 ms) saves nothing

PREY_RULES = {"learned": LEARNED, "scripted": SCRIPTED, "facmac": FACMAC, "random": RANDOM}


def cooperative_navigation(
    agents: int,
    landmarks: int,
    rules: str,
    entities: str,
    episode_length: int,
    copies: int,
    seed: int,
    stagger: bool,
) -> "ParticleWorld":
    """Agents spread out so that each landmark has one near it, without touching each other."""
    layout = Layout(
        agents=agents,
        bodies=agents,
        colliders=agents,
        predators=agents,
        pursuit=False,
        openai=rules == "openai",
        by_distance=entities == "distance",
        prey_rule=LEARNED,
        prey_scale=1.0,
        size=_column((agents, 0.15), (landmarks, 0.05)),
        acceleration=_column((agents, 5.0)),
        max_speed=_column((agents, np.inf)),
        seen=_seen(agents, agents, agents + landmarks),
        start=_column((agents + landmarks, 1.0)),
    )
    spec = EnvSpec(
        name="cooperative-navigation",
        agent_names=tuple(f"agent_{i}" for i in range(agents)),
        observation_sizes=(2 * landmarks + 4 * agents,) * agents,
        action_sizes=(ACTIONS,) * agents,
        discrete=True,
        soft_actions=True,
        episode_length=episode_length,
        fixed_length=True,
        metrics=("landmarks_covered",),
    )
    return ParticleWorld(spec, layout, ["agent"] * agents + ["landmark"] * landmarks, copies, seed, stagger)


def predator_prey(
    predators: int,
    prey: str,
    prey_count: int,
    prey_scale: float,
    obstacles: int,
    rules: str,
    entities: str,
    episode_length: int,
    copies: int,
    seed: int,
    stagger: bool,
) -> "ParticleWorld":
    """Predators touch the prey, which is faster, among obstacles.

    Learned prey are agents, after the predators; others are moved by the world: `scripted` by the project's
    rule, `facmac` by FACMAC's, `random` with a push drawn from U(-1, 1) on each axis, times its acceleration.
    """
    bodies = predators + prey_count
    learned = prey == "learned"
    layout = Layout(
        agents=bodies if learned else predators,
        bodies=bodies,
        colliders=bodies + obstacles,
        predators=predators,
        pursuit=True,
        openai=rules == "openai",
        by_distance=entities == "distance",
        prey_rule=PREY_RULES[prey],
        prey_scale=float(prey_scale),
        size=_column((predators, 0.075), (prey_count, 0.05), (obstacles, 0.2)),
        acceleration=_column((predators, 3.0), (prey_count, 4.0)),
        max_speed=_column((predators, 1.0), (prey_count, 1.3)),
        seen=_seen(bodies if learned else predators, bodies, bodies + obstacles),
        start=_column((bodies, 1.0), (obstacles, 0.9)),
    )
    view = 4 + 2 * obstacles + 2 * (bodies - 1) + 2 * prey_count  # of a predator; a prey leaves out its own velocity
    trained_prey = prey_count if learned else 0
    spec = EnvSpec(
        name="predator-prey",
        agent_names=(*(f"adversary_{i}" for i in range(predators)), *(f"agent_{i}" for i in range(trained_prey))),
        observation_sizes=(view,) * predators + (view - 2,) * trained_prey,
        action_sizes=(ACTIONS,) * (predators + trained_prey),
        discrete=True,
        soft_actions=True,
        team=predators if learned else 0,
        episode_length=episode_length,
        fixed_length=True,
        agent_groups=("predator",) * predators + ("prey",) * trained_prey,
        metrics=("prey_caught",),
    )
    kinds = ["predator"] * predators + ["prey"] * prey_count + ["obstacle"] * obstacles
    return ParticleWorld(spec, layout, kinds, copies, seed, stagger)


def _column(*parts: tuple[int, float]) -> NDArray[np.float64]:
    """Each value repeated as often as asked, one part after the other."""
    counts, values = zip(*parts, strict=True)
    return np.repeat(np.array(values, np.float64), counts)


def _seen(agents: int, bodies: int, entities: int) -> NDArray[np.uint32]:
    """(N, K - 1) what each agent sees: landmarks first, then the other bodies."""
    order = np.r_[bodies:entities, 0:bodies]
    return np.array([order[order != i] for i in range(agents)], np.uint32)


class ParticleWorld(Copies):
    """E copies of a particle world, stepped together; a `VectorEnv`.

    `position` and `velocity` (E, K, 2) may be written into at any time; `observe` shows the result.
    """

    def __init__(self, spec: EnvSpec, layout: Layout, kinds: list[str], copies: int, seed: int, stagger: bool) -> None:
        """Build the copies and start an episode in each."""
        each = 4 * (4 * spec.agents * (spec.observation_size + ACTIONS) + 16 * len(kinds))  # four steps' views
        check_fits(
            f"A world of {counted(copies, 'copy', 'copies')} of {counted(spec.agents, 'agent')}",
            copies * each,
            lambda usable: f"at most {usable // each:,} copies fit",
        )
        super().__init__(spec, copies, seed)
        self.entities = tuple(Entity(kind, float(size)) for kind, size in zip(kinds, layout.size, strict=True))
        self.position = np.zeros((copies, len(kinds), 2))
        self.velocity = np.zeros((copies, len(kinds), 2))
        self.final_position = np.zeros((len(kinds), 2))  # in copy 0, when its last episode ended
        self.layout = layout
        self._random = stream(seed, "envs").integers(2**64, size=copies, dtype=np.uint64)
        self._first_step = stagger_offsets(copies, spec.episode_length if stagger else None)
        self._last_step = (spec.episode_length or 0) - 1
        self._action_shape = (copies, spec.agents, ACTIONS)
        self._force = np.zeros((copies, layout.bodies, 2))
        self._caught = np.zeros((copies, layout.bodies - layout.predators), np.bool_)  # prey touched in this episode
        self._state: dict[str, NDArray] = {"position": self.position, "velocity": self.velocity}
        self._state |= {"episode_step": self._episode_step, "random": self._random}
        self._state |= {"caught": self._caught} if layout.pursuit else {}
        self._no_metrics = np.zeros((copies, 1), np.float32)
        self._views = _ArrayPool((copies, spec.agents, spec.observation_size))
        self.reset()

    @property
    def threads(self) -> int:
        """Number of threads that share the copies; one where waking others would cost more than it saves."""
        return 1 if self._views.size < THREADS_FROM else min(numba.get_num_threads(), self.copies)

    def reset(self) -> Array:
        self._episode_step[:] = self._first_step
        self._caught[:] = False
        physics.start(self.layout, self.position, self.velocity, self._random)
        return self.observe()

    def observe(self) -> Array:
        """What the agents see now, (E, N, O)."""
        observation = self._views.take()
        physics.look(self.layout, self.position, self.velocity, observation)
        return observation

    def step(self, actions: ArrayLike) -> Step:
        """Play one step in every copy: actions (E, N, 5), one-hot or soft, or whole numbers (E, N)."""
        vectors = self._checked(actions)
        ended = self._episode_step == self._last_step  # (E,)
        any_ended = bool(ended.any())
        observation = self._views.take()
        final_observation = self._views.take() if any_ended else observation
        reward = np.empty(self._action_shape[:2], np.float32)
        metrics = np.zeros((self.copies, 1), np.float32) if any_ended else self._no_metrics
        state = (self._force, self.position, self.velocity, self._random, self._caught, self.final_position)
        results: Any = (ended, observation, reward, final_observation, any_ended, metrics)
        if (threads := self.threads) == 1:
            culprit = physics.control_and_play(self.layout, vectors, *state, *results)
        else:
            culprit = physics.control(self.layout, vectors, self._force)
        if culprit >= 0:  # nothing has moved
            copy, agent = divmod(culprit, self.spec.agents)
            raise UserError(
                f"the action of {self.spec.agent_names[agent]} in copy {copy} is {vectors[copy, agent].tolist()}, "
                f"but all {ACTIONS} entries must be finite numbers."
            )
        if threads > 1:
            share_out(physics.play, self.copies, threads, self.layout, *state, *results)
        self._episode_step += 1
        if any_ended:
            self._episode_step[ended] = 0
        nobody, everybody = np.zeros(reward.shape, np.bool_), np.ones(reward.shape, np.bool_)
        return Step(observation, reward, nobody, ended, everybody, ended.copy(), final_observation, metrics)

    def _checked(self, given: ArrayLike) -> NDArray[np.floating]:
        """The actions as the kernels take them; a `UserError` before anything has moved."""
        actions: Any = one_hot(self.spec, self.copies, given)
        is_array = isinstance(actions, np.ndarray)
        if not (is_array and actions.shape == self._action_shape and actions.dtype in (np.float32, np.float64)):
            actual = f"{actions.dtype} of shape {actions.shape}" if is_array else f"a {type(actions).__name__}"
            raise UserError(
                f"{self.spec.name} was given actions that are {actual}, but needs a numpy array of float32 or "
                f"float64 of shape {self._action_shape}: copies, agents, {ACTIONS} entries each; or whole numbers of "
                f"shape {self._action_shape[:2]}."
            )
        return actions if actions.flags.carray else actions.copy()  # other layouts would be compiled separately

    def state(self) -> dict[str, NDArray]:
        return {name: array.copy() for name, array in self._state.items()}

    def load_state(self, state: dict[str, NDArray]) -> None:
        for name, array in self._state.items():
            given = state.get(name)
            if given is None or given.shape != array.shape or given.dtype != array.dtype:
                actual = "missing" if given is None else f"{given.dtype} of shape {given.shape}"
                raise UserError(
                    f"the saved state of {self.spec.name} does not fit this world: '{name}' is {actual}, "
                    f"but must be {array.dtype} of shape {array.shape}."
                )
        steps = state["episode_step"]
        if steps.min() < 0 or steps.max() > self._last_step:
            raise UserError(
                f"the saved state of {self.spec.name} does not fit this world: it has episodes of more than "
                f"{counted(self._last_step + 1, 'step')}."
            )
        for name, array in self._state.items():
            array[:] = state[name]


class _ArrayPool:
    """Hands out arrays of one shape, and reuses those that are no longer referenced.

    The operating system hands over fresh memory page by page, which for large arrays takes longer than the step
    that fills them. An array is not reused while it, or a view of it, is referenced.
    """

    def __init__(self, shape: tuple[int, ...], places: int = 4) -> None:
        """A pool of arrays of this shape; four are enough for a caller that keeps two steps."""
        self.size, self._shape, self._places = math.prod(shape), shape, places
        self._arrays: list[Array] = []

    def take(self) -> Array:
        """An array to write into; its contents are arbitrary."""
        for i in range(len(self._arrays)):
            if _references(self._arrays, i) == _UNREFERENCED:
                return self._arrays[i]
        array = np.empty(self._shape, np.float32)
        if len(self._arrays) < self._places:
            self._arrays.append(array)
        return array


def _references(arrays: list[Array], i: int) -> int:
    return sys.getrefcount(arrays[i])


_UNREFERENCED = _references([np.empty(0, np.float32)], 0)  # counted, because it differs between versions of Python
