"""E copies of a third-party environment, held in a list and stepped one after another.

The copies have PettingZoo's parallel interface (dictionaries by agent name, agents that come and go).
Shape letters: E copies, N agents, O observation, A action, T time.
"""

import contextlib
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Protocol

import numpy as np
from gymnasium.spaces import Discrete, Space
from numpy.typing import ArrayLike, NDArray

from shoal.envs.base import Array, Bools, Copies, EnvSpec, Step, one_hot, stagger_offsets
from shoal.envs.faults import fault, in_short, message, takes_seed
from shoal.envs.spaces import action_size, decode, encode, is_choice, observation_size
from shoal.errors import UserError
from shoal.seeding import stream_seed
from shoal.system.memory import check_fits

ACTION_OBJECT = 120
"""Bytes of a kept action beside its numbers: an array's header and its place in a list."""


class ParallelWorld(Protocol):
    """The part of PettingZoo's ParallelEnv that is used here."""

    possible_agents: list[Any]
    agents: list[Any]

    def observation_space(self, agent: Any) -> Space[Any]: ...
    def action_space(self, agent: Any) -> Space[Any]: ...
    def reset(self, seed: int) -> tuple[dict[Any, Any], dict[Any, Any]]: ...
    def step(self, actions: dict[Any, Any]) -> tuple[dict[Any, Any], ...]: ...
    def render(self) -> Any: ...
    def close(self) -> None: ...


def episode_seed(seed: int, copy: int, episode: int) -> int:
    """The seed that one episode of one copy is reset with: 31 bits, since some libraries take no more."""
    return stream_seed(seed, f"copy {copy} episode {episode}") >> 32


class ParallelCopies(Copies):
    """A `VectorEnv` over PettingZoo-like environments.

    Every episode begins with a reset under a seed made of (seed, copy, episode number), and the actions
    played in it are kept. That is how `state` and `load_state` work without access to the environment's internals:
    reset with the same seed, play the same actions. It is exact for environments in which the seed of
    the reset determines everything, and costs one replay of the episodes that were under way.
    """

    def __init__(
        self,
        name: str,
        worlds: list[ParallelWorld],
        seed: int,
        episode_length: int | None,
        stagger: bool,
        first: int = 0,
        total: int | None = None,
    ) -> None:
        """Take `worlds`, one per copy and all alike; `episode_length` truncates episodes, None leaves that to them.

        They may be a part of `total` copies, beginning with number `first`: seeds and staggering go by the whole.
        """
        self._worlds = worlds
        forms = [_agents_and_spaces(name, world) for world in worlds]
        self._agents, self._observation_spaces, self._action_spaces = forms[0]
        self.form = re.sub(" at 0x[0-9a-f]+", "", repr(forms[0]))
        """Agents and spaces as text, without addresses: it can be compared with that of another process."""
        first_text = repr(forms[0])  # equal texts are quicker to compare than spaces
        if any(repr(form) != first_text and form != forms[0] for form in forms[1:]):
            raise differs(name)
        spec = _spec(name, self._agents, self._observation_spaces, self._action_spaces, episode_length)
        if episode_length is None:
            spec = replace(spec, stated_length=_stated_length(worlds[0]))
        super().__init__(spec, len(worlds), seed)
        check_arrays(self.spec, self.copies)
        self._seed, self._first = seed, first
        offsets = stagger_offsets(total or self.copies, episode_length if stagger else None)
        self._offsets = offsets[first : first + self.copies]  # (E,)

        shape = (self.copies, self.spec.agents, self.spec.observation_size)
        self._episode = np.full(self.copies, -1)  # (E,)  number of the episode under way; -1: not yet reset
        self._present = np.zeros(shape[:2], np.bool_)  # (E, N)  takes part in the next step
        self._observation = np.zeros(shape, np.float32)  # (E, N, O)
        self._played: list[list[Array]] = [[] for _ in worlds]  # actions (N, A) of the episode under way

    def reset(self) -> Array:
        """Start a new episode in every copy, staggered where that was asked for."""
        for e in range(self.copies):
            self._begin(e, self._episode[e] + 1, self._offsets[e])
        return self._observation.copy()

    @property
    def present(self) -> Bools:
        """(E, N) whether the agent takes part in the next step."""
        return self._present.copy()

    def step(self, actions: ArrayLike) -> Step:
        """Play one step in every copy: actions (E, N, A), or whole numbers (E, N) for choices.

        Actions of agents that are not there are ignored.
        """
        self._check_begun()
        vectors = checked_actions(self.spec, self.copies, actions, self._present, self._first)
        took_part = self._present.copy()  # (E, N)
        reward = np.zeros(took_part.shape, np.float32)
        terminated = np.zeros(took_part.shape, np.bool_)
        for e in range(self.copies):
            self._play(e, vectors[e], reward[e], terminated[e])
        self._check_finite("reward", reward[..., None])
        self._check_finite("observation", self._observation)

        ended = np.logical_not(self._present.any(1))  # (E,)
        if self.spec.episode_length is not None:
            ended |= self._episode_step >= self.spec.episode_length
        # An episode that ended while an agent had not reached a true end was cut.
        truncated = np.logical_and(ended, (took_part & ~terminated | self._present).any(1))  # (E,)
        final_observation = self._observation.copy()
        for e in range(self.copies):
            if ended[e]:
                self._begin(e, self._episode[e] + 1, 0)
        metrics = np.zeros((self.copies, 0), np.float32)
        return Step(
            self._observation.copy(), reward, terminated, truncated, took_part, ended, final_observation, metrics
        )

    def state(self) -> dict[str, NDArray]:
        """The episode number of each copy, and the actions played in it so far."""
        self._check_begun()
        played = np.array([len(actions) for actions in self._played])
        actions = np.zeros((self.copies, played.max(), self.spec.agents, self.spec.action_size), np.float32)
        for e, rows in enumerate(self._played):
            actions[e, : len(rows)] = np.reshape(rows, (-1, *actions.shape[2:]))
        return {
            "seed": np.array([self._seed]),
            "episode": self._episode.copy(),
            "episode_step": self._episode_step.copy(),
            "played": played,
            "actions": actions,  # (E, T, N, A), zero behind `played`
            "observation": self._observation.copy(),
        }

    def load_state(self, state: dict[str, NDArray]) -> None:
        """Begin the same episodes again and play the same actions in them."""
        check_state(self.spec, self.copies, state)
        actions, played = np.array(state["actions"]), state["played"]
        self._seed = int(state["seed"][0])
        unused = np.zeros(self.spec.agents, np.float32), np.zeros(self.spec.agents, np.bool_)
        for e in range(self.copies):
            self._begin(e, state["episode"][e], state["episode_step"][e] - played[e])
            for action in actions[e, : played[e]]:
                self._play(e, action, *unused)
                if not self._present[e].any():  # cannot be where the seed determines everything
                    self._begin(e, self._episode[e] + 1, 0)
                    break
        if not np.array_equal(self._observation, state["observation"]):
            warnings.warn(
                f"{self.spec.name} does not repeat an episode under the same seed: a resumed run continues from "
                "other states than it had, and evaluations during training start from different states each time.",
                stacklevel=2,
            )

    def render(self) -> NDArray[np.uint8] | None:
        """An RGB picture (height, width, 3) of copy 0; None unless it was made with render_mode "rgb_array"."""
        if getattr(self._worlds[0], "render_mode", None) != "rgb_array":
            return None
        self._check_begun()
        return _picture(self.spec.name, self._call(0, "render"))

    def close(self) -> None:
        """Close every copy; one that fails does not keep the others open, and costs no results."""
        for world in self._worlds:
            try:
                world.close()
            except SystemExit as error:
                warn_once(f"{self.spec.name} called sys.exit({error.code!r}) when it was closed.")
            except Exception as error:
                warn_once(f"{self.spec.name} could not be closed: {message(error)}.")

    def _begin(self, e: int, episode: int, offset: int) -> None:
        """Start the numbered episode in copy e, as if `offset` steps of it were over."""
        seed = episode_seed(self._seed, self._first + e, episode)
        observations, _ = self._asked(e, "reset", "observations, infos", seed=seed)
        self._episode[e] = episode
        self._episode_step[e] = offset
        self._played[e] = []
        listed = self._listed(e)
        if not listed:
            raise UserError(f"{self.spec.name} has an empty list `agents` after reset(), so there is no episode.")
        self._observation[e] = 0
        for i, agent in enumerate(self._agents):
            self._present[e, i] = agent in listed
            if agent in listed:
                self._observe(e, i, observations)
        self._check_finite("observation", self._observation)

    def _play(self, e: int, action: Array, reward: Array, terminated: Bools) -> None:
        """Play one step in copy e with action (N, A); fill in reward and terminated, both (N,)."""
        # All listed agents get an action: environments that list agents after their end expect one.
        listed, took_part = self._listed(e), self._present[e].tolist()
        played = zip(self._agents, self._action_spaces, action, strict=True)
        chosen = {agent: decode(space, vector) for agent, space, vector in played if agent in listed}
        parts = "observations, rewards, terminations, truncations, infos"
        observations, rewards, terminations, truncations, _ = self._asked(e, "step", parts, chosen)
        self._played[e].append(action)
        self._episode_step[e] += 1

        listed = self._listed(e)
        self._observation[e] = 0
        for i, agent in enumerate(self._agents):
            over, cut = (self._flag(e, i, ends.get(agent, False)) for ends in (terminations, truncations))
            stays = agent in listed and not (over or cut)
            if took_part[i]:
                # Terminated and truncated at once is terminated. So is leaving with neither: nothing to bootstrap from.
                over = over or not (agent in listed or cut)
                terminated[i] = over
                if agent in listed and agent not in rewards:  # an agent that has left may have none
                    raise UserError(f"{self._where(e, i)} got no reward, but is still in the list `agents`.")
                reward[i] = self._reward(e, i, rewards.get(agent, 0.0))
            if stays or (took_part[i] and (agent in observations or not over)):
                self._observe(e, i, observations)
            self._present[e, i] = stays

    def _asked(self, e: int, method: str, parts: str, *arguments: Any, **named: Any) -> tuple[dict, ...]:
        """What a method of copy e returns, if these parts are dictionaries by agent; infos may be anything."""
        result = self._call(e, method, *arguments, **named)
        count = parts.count(",") + 1
        if not (
            isinstance(result, tuple | list)
            and len(result) == count
            and all(isinstance(part, Mapping) for part in result[: count - 1])
        ):
            raise UserError(f"{method}() of {self.spec.name} must return {parts}, each a dictionary by agent.")
        return tuple(result)

    def _call(self, e: int, method: str, *arguments: Any, **named: Any) -> Any:
        """What a method of copy e returns; a sentence where it fails, or ends the program as if it were its own."""
        world = self._worlds[e]
        try:
            return getattr(world, method)(*arguments, **named)
        except (UserError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            if method == "reset" and isinstance(error, TypeError) and not takes_seed(_plain(world).reset):
                sentence = f"reset() of {self.spec.name} must take a seed: reset(seed=None, options=None)."
                raise UserError(sentence) from error
            raise fault(self.spec.name, method, error) from error

    def _flag(self, e: int, i: int, value: Any) -> bool:
        """Whether an episode has ended for agent i of copy e."""
        number = _number(False if value is None else value)
        if number is None:
            raise UserError(
                f"{self._where(e, i)} got {in_short(value)} for terminated or truncated, which is not true or false."
            )
        return bool(number)

    def _reward(self, e: int, i: int, value: Any) -> np.float32:
        """The reward of agent i of copy e."""
        number = _number(value)
        if number is None:
            raise UserError(f"{self._where(e, i)} got the reward {in_short(value)}, which is not a number.")
        with np.errstate(over="ignore"):  # infinity is refused after the step
            return np.float32(number)

    def _observe(self, e: int, i: int, observations: dict) -> None:
        """Write what agent i of copy e sees; the rest of its row is padding."""
        agent = self._agents[i]
        vector = encode(self._observation_spaces[i], observations[agent]) if agent in observations else None
        if vector is None:
            raise UserError(f"{self._where(e, i)} got no observation that matches its observation space.")
        self._observation[e, i, : vector.size] = vector

    def _listed(self, e: int) -> set:
        """The agents that copy e says are active."""
        try:
            listed = set(self._worlds[e].agents)
        except (AttributeError, TypeError) as error:
            raise UserError(
                f"{self.spec.name} must have a list `agents` of those who take part, set by reset()."
            ) from error
        if not listed.issubset(self._agents):
            unknown = next(iter(listed.difference(self._agents)))
            raise UserError(f"{self.spec.name} has an agent '{unknown}' that is not one of its possible_agents.")
        return listed

    def _check_finite(self, what: str, values: Array) -> None:
        """Raise where `values` (E, N, any) that came from a copy have NaN or infinity in them."""
        if not np.isfinite(values).all():
            e, i, _ = np.argwhere(~np.isfinite(values))[0]
            raise UserError(f"{self._where(e, i)} got NaN or infinity in its {what}; all numbers must be finite.")

    def _check_begun(self) -> None:
        """Raise unless there is an episode under way."""
        if self._episode[0] < 0:
            raise UserError(f"{self.spec.name} has no episode under way yet; call reset() first.")

    def _where(self, e: int, i: int) -> str:
        """The beginning of a sentence about one agent of one copy."""
        return _where(self.spec, self._first + e, i)


def check_arrays(spec: EnvSpec, copies: int) -> None:
    """Refuse copies whose views of four steps and played actions, from which a checkpoint repeats them, do not fit."""
    views = 4 * 4 * spec.agents * spec.observation_size
    played = 8 * spec.agents * spec.action_size + ACTION_OBJECT  # and once more in a checkpoint
    check_fits(
        f"Keeping the actions of an episode in {copies:,} copies of {spec.name}",
        copies * (views + (spec.episode_length or 0) * played),
        lambda usable: (
            f"episodes of {max(0, usable // copies - views) // played:,} steps fit, or fewer copies"
            if spec.episode_length
            else f"about {usable // views:,} copies fit"
        ),
    )


@cache
def warn_once(sentence: str) -> None:
    """Warn once per process, however many environments a command makes."""
    warnings.warn(sentence, stacklevel=1)


def checked_actions(spec: EnvSpec, copies: int, given: ArrayLike, present: Bools, first: int = 0) -> Array:
    """A float32 copy of the actions (E, N, A), with shape and values checked where agents are present (E, N)."""
    try:
        actions = np.array(one_hot(spec, copies, given, present), np.float32)
    except (TypeError, ValueError):
        raise UserError(f"Actions for {spec.name} are not an array of numbers.") from None
    expected = (copies, spec.agents, spec.action_size)
    if actions.shape != expected:
        numbers = f", or whole numbers of shape {expected[:2]}" if spec.discrete else ""
        raise UserError(
            f"Actions for {spec.name} have the shape {actions.shape}, but must have {expected}: "
            f"copies, agents, action entries{numbers}."
        )
    wrong = ~np.isfinite(actions) & present[..., None] & spec.action_mask  # (E, N, A)
    if wrong.any():
        e, i, _ = np.argwhere(wrong)[0]
        raise UserError(f"{_where(spec, first + e, i)} was given an action with NaN or infinity; all must be finite.")
    return actions


def check_state(spec: EnvSpec, copies: int, state: dict[str, NDArray]) -> None:
    """Refuse a saved state of another number of copies, or of another environment."""
    shape, expected = state["actions"].shape, (copies, spec.agents, spec.action_size)
    if (actual := (shape[0], *shape[2:])) != expected:
        raise UserError(
            f"The saved state of {spec.name} is of {actual} copies, agents and action entries, "
            f"but this environment has {expected}."
        )


def _where(spec: EnvSpec, e: int, i: int) -> str:
    """The beginning of a sentence about one agent of one copy."""
    return f"Agent '{spec.agent_names[i]}' in copy {e} of {spec.name}"


def differs(name: str) -> UserError:
    """The error where copies, in this process or in a worker, are not alike."""
    return UserError(f"{name} differs from copy to copy, but all must have the same agents and spaces.")


def _agents_and_spaces(name: str, world: ParallelWorld) -> tuple[list[Any], list[Space[Any]], list[Space[Any]]]:
    """The agents of a copy, with the spaces of what they see and do."""
    agents = list(world.possible_agents)
    if len(set(agents)) < len(agents):
        raise UserError(f"{name} has an agent twice among its possible_agents: {in_short(agents)}.")
    observation_spaces, action_spaces = (
        [_space(name, world, f"{kind}_space", agent) for agent in agents] for kind in ("observation", "action")
    )
    return agents, observation_spaces, action_spaces


def _space(name: str, world: ParallelWorld, kind: str, agent: Any) -> Space[Any]:
    """One of an agent's two spaces; a `UserError` where the environment has none."""
    try:
        space = getattr(world, kind)(agent)
    except (AttributeError, TypeError, KeyError, NotImplementedError):
        space = None
    except (UserError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise fault(name, kind, error) from error
    if not isinstance(space, Space):
        actual = "none" if space is None else f"a {type(space).__module__}.{type(space).__name__}"
        raise UserError(f"Agent '{agent}' of {name} needs an {kind} of gymnasium.spaces, but has {actual}.")
    return space


def _plain(world: Any) -> Any:
    """The environment itself, without wrappers, which take what it does not."""
    return getattr(world, "unwrapped", world)


def _number(value: Any) -> float | None:
    """The one number that a value is, or that an array holds, as some environments give it; None if there is none."""
    if isinstance(value, bool | float):  # nearly always, and quicker
        return value
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # rows of different lengths, tensors that are elsewhere
        return None
    number: float | None = array.item() if array.size == 1 and array.dtype.kind in "biuf" else None
    return number


def _picture(name: str, picture: Any) -> NDArray[np.uint8]:
    """What render() returned, if it is a picture."""
    if isinstance(picture, np.ndarray):
        bytes_only = picture.dtype.kind in "iu" and picture.size and picture.min() >= 0 and picture.max() <= 255
        if bytes_only and picture.ndim == 3 and picture.shape[2] == 3:
            return picture.astype(np.uint8, copy=False)
        what = f"an array of shape {picture.shape} and type {picture.dtype}"
    else:
        what = "None" if picture is None else f"a {type(picture).__name__}"
    raise UserError(
        f"The world '{name}' cannot be watched: its render() returned {what}, but must return (height, width, 3) of "
        "bytes."
    )


def _stated_length(world: Any) -> int | None:
    """The most steps of an episode, where a PettingZoo environment or the world inside it says so."""
    with contextlib.suppress(Exception):  # third-party code, and only a hint
        inner = world.unwrapped
        for part in (world, inner, getattr(inner, "env", None)):
            if isinstance(most := getattr(part, "max_cycles", None), int | float) and 0 < most < math.inf:
                return int(most)
    return None


def _spec(
    name: str, agents: list[Any], observation_spaces: list[Space], action_spaces: list[Space], length: int | None
) -> EnvSpec:
    """The spec of the environment, from its spaces."""
    names = tuple(str(agent) for agent in agents)
    observation_sizes = tuple(map(observation_size, observation_spaces, names, [name] * len(names)))
    sizes = tuple(map(action_size, action_spaces, names, [name] * len(names)))
    discrete = [is_choice(space) for space in action_spaces]
    if len(set(discrete)) > 1:
        raise UserError(
            f"Agent '{names[discrete.index(True)]}' of {name} has discrete actions and agent "
            f"'{names[discrete.index(False)]}' a box, but all agents must have the same kind."
        )
    low = high = None
    if not discrete[0]:
        low, high = (np.zeros((len(names), max(sizes)), np.float32) for _ in range(2))
        for i, space in enumerate(action_spaces):
            low[i, : sizes[i]], high[i, : sizes[i]] = space.low, space.high  # type: ignore[attr-defined]
    whole = all(isinstance(space, Discrete) and space.start == 0 for space in observation_spaces)
    return EnvSpec(
        name, names, observation_sizes, sizes, discrete[0], action_low=low, action_high=high, episode_length=length,
        whole_numbers=whole and len(set(observation_sizes)) == 1,
        from_zero=not discrete[0] or all(isinstance(space, Discrete) and space.start == 0 for space in action_spaces),
    )  # fmt: skip
