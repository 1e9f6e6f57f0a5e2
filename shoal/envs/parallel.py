"""E copies of a third-party environment, held in a list and stepped one after another.

The copies have PettingZoo's parallel interface (dictionaries by agent name, agents that come and go).
Shape letters: E copies, N agents, O observation, A action, T time.
"""

import contextlib
import math
import re
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import ArrayLike, NDArray

from shoal.envs.base import Array, Bools, Copies, EnvSpec, Step, one_hot, random_actions, stagger_offsets
from shoal.envs.faults import fault, in_short, message, takes_seed
from shoal.envs.spaces import MASK, decode, encode, has_mask, is_choice, legal_choices, spec_of, without_mask
from shoal.errors import UserError
from shoal.seeding import stream_seed
from shoal.system.memory import check_fits

NO_FLAG = "{} for terminated or truncated, which is not true or false"
NO_REWARD = "the reward {}, which is not a number"
ACTION_OBJECT = 120  # bytes of a kept action beside its numbers: an array's header and its place in a list


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


class AdaptedCopies(Copies):
    """What copies in this process and copies in workers have in common: they refuse the same mistakes of the caller."""

    present: Bools  # (E, N) whether the agent takes part in the next step; nobody does before the first reset
    first = 0  # number of the first copy, where these are a part of more
    _observation: Array  # (E, N, O)  the newest

    def sample_actions(self) -> Array:
        return random_actions(self.spec, self.copies, self._sampler, self._observation)

    def check_begun(self) -> None:
        """Raise unless there is an episode under way."""
        if not self.present.any():
            raise UserError(f"{self.spec.name} has no episode under way yet; call reset() first.")

    def checked_actions(self, given: ArrayLike) -> Array:
        """A float32 copy of the actions (E, N, A), with shape and values checked where agents are present."""
        self.check_begun()
        try:
            actions = np.array(one_hot(self.spec, self.copies, given, self.present), np.float32)
        except (TypeError, ValueError):
            raise UserError(f"Actions for {self.spec.name} are not an array of numbers.") from None
        expected = (self.copies, self.spec.agents, self.spec.action_size)
        if actions.shape != expected:
            numbers = f", or whole numbers of shape {expected[:2]}" if self.spec.discrete else ""
            raise UserError(
                f"Actions for {self.spec.name} have the shape {actions.shape}, but must have {expected}: "
                f"copies, agents, action entries{numbers}."
            )
        wrong = ~np.isfinite(actions) & self.present[..., None] & self.spec.action_mask  # (E, N, A)
        if wrong.any():
            e, i, _ = np.argwhere(wrong)[0]
            raise UserError(f"{self.where(e, i)} was given an action with NaN or infinity; all must be finite.")
        return actions

    def check_state(self, state: dict[str, NDArray]) -> None:
        """Refuse a saved state of another number of copies, or of another environment."""
        shape, expected = state["actions"].shape, (self.copies, self.spec.agents, self.spec.action_size)
        if (actual := (shape[0], *shape[2:])) != expected:
            raise UserError(
                f"The saved state of {self.spec.name} is of {actual} copies, agents and action entries, "
                f"but this environment has {expected}."
            )

    def where(self, e: int, i: int) -> str:
        """The beginning of a sentence about one agent of one copy."""
        return f"Agent '{self.spec.agent_names[i]}' in copy {self.first + e} of {self.spec.name}"


class ParallelCopies(AdaptedCopies):
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
        masks: bool = False,
    ) -> None:
        """Take `worlds`, one per copy and all alike; `episode_length` truncates episodes, None leaves that to them.

        They may be a part of `total` copies, beginning with number `first`: seeds and staggering go by the whole.
        `masks`: infos have action masks, too.
        """
        self._worlds = worlds
        forms = [_agents_and_spaces(name, world) for world in worlds]
        self._agents, self._observation_spaces, self._action_spaces = forms[0]
        first_text = repr(forms[0])  # equal texts are quicker to compare than spaces
        if any(repr(form) != first_text and form != forms[0] for form in forms[1:]):
            raise differs(name)
        stated = _stated_length(worlds[0]) if episode_length is None else None
        self._masks = masks
        self._has_mask = list(map(has_mask, self._observation_spaces, self._action_spaces))
        for i in np.flatnonzero(self._has_mask):
            self._observation_spaces[i] = without_mask(self._observation_spaces[i])
        spaces = self._observation_spaces, self._action_spaces
        masked = masks or any(self._has_mask)
        super().__init__(spec_of(name, self._agents, *spaces, episode_length, stated, masked), len(worlds), seed)
        check_arrays(self.spec, self.copies)
        bounds = [ends.tolist() for ends in (self.spec.action_low, self.spec.action_high) if ends is not None]
        self.form = re.sub(" at 0x[0-9a-f]+", "", f"{first_text}, {episode_length}, {stated}, {bounds}")
        """Agents, spaces and lengths as text, without addresses: it can be compared with that of another process."""
        self._seed, self.first = seed, first
        offsets = stagger_offsets(total or self.copies, episode_length if stagger else None)
        self._offsets = offsets[first : first + self.copies]  # (E,)

        shape = (self.copies, self.spec.agents, self.spec.observation_size)
        self._episode = np.full(self.copies, -1)  # (E,)  number of the episode under way; -1: not yet reset
        self.present = np.zeros(shape[:2], np.bool_)
        self._observation = np.zeros(shape, np.float32)  # (E, N, O)
        self._played: list[list[Array]] = [[] for _ in worlds]  # actions (N, A) of the episode under way

    def reset(self) -> Array:
        """Start a new episode in every copy, staggered where that was asked for."""
        for e in range(self.copies):
            self._begin(e, self._episode[e] + 1, self._offsets[e])
        return self._observation.copy()

    def step(self, actions: ArrayLike) -> Step:
        """Play one step in every copy: actions (E, N, A), or whole numbers (E, N) for choices.

        Actions of agents that are not there are ignored.
        """
        vectors = self.checked_actions(actions)
        took_part = self.present.copy()  # (E, N)
        reward = np.zeros(took_part.shape, np.float32)
        terminated = np.zeros(took_part.shape, np.bool_)
        for e in range(self.copies):
            self._play(e, vectors[e], reward[e], terminated[e])
        self._check_finite("reward", reward[..., None])
        self._check_finite("observation", self._observation)

        ended = np.logical_not(self.present.any(1))  # (E,)
        if self.spec.episode_length is not None:
            ended |= self._episode_step >= self.spec.episode_length
        # An episode that ended while an agent had not reached a true end was cut.
        truncated = np.logical_and(ended, (took_part & ~terminated | self.present).any(1))  # (E,)
        final_observation = self._observation.copy()
        for e in range(self.copies):
            if ended[e]:
                self._begin(e, self._episode[e] + 1, 0)
        metrics, now = np.zeros((self.copies, 0), np.float32), self._observation.copy()
        return Step(now, reward, terminated, truncated, took_part, ended, final_observation, metrics)

    def state(self) -> dict[str, NDArray]:
        """The episode number of each copy, and the actions played in it so far."""
        self.check_begun()
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
        self.check_state(state)
        actions, played = np.array(state["actions"]), state["played"]
        self._seed = int(state["seed"][0])
        unused = np.zeros(self.spec.agents, np.float32), np.zeros(self.spec.agents, np.bool_)
        for e in range(self.copies):
            self._begin(e, state["episode"][e], state["episode_step"][e] - played[e])
            for action in actions[e, : played[e]]:
                self._play(e, action, *unused)
                if not self.present[e].any():  # cannot be where the seed determines everything
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
        self.check_begun()
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
        seed = episode_seed(self._seed, self.first + e, episode)
        observations, infos = self._asked(e, "reset", "observations, infos", seed=seed)
        self._episode[e] = episode
        self._episode_step[e] = offset
        self._played[e] = []
        if not (listed := self._listed(e)):
            raise UserError(f"{self.spec.name} has an empty list `agents` after reset(), so there is no episode.")
        if self._masks and not any(MASK in _of_agent(infos, agent) for agent in listed):
            raise UserError(f"The infos of {self.spec.name} have no {MASK}; leave out `env_masks` (make_env: masks).")
        self._observation[e] = 0
        for i, agent in enumerate(self._agents):
            self.present[e, i] = agent in listed
            if agent in listed:
                self._observe(e, i, observations, infos)
        self._check_finite("observation", self._observation)

    def _play(self, e: int, action: Array, reward: Array, terminated: Bools) -> None:
        """Play one step in copy e with action (N, A); fill in reward and terminated, both (N,)."""
        # All listed agents get an action: environments that list agents after their end expect one.
        listed, took_part = self._listed(e), self.present[e].tolist()
        played = zip(self._agents, self._action_spaces, action, strict=True)
        chosen = {agent: decode(space, vector) for agent, space, vector in played if agent in listed}
        parts = "observations, rewards, terminations, truncations, infos"
        observations, rewards, terminations, truncations, infos = self._asked(e, "step", parts, chosen)
        self._played[e].append(action)
        self._episode_step[e] += 1

        listed = self._listed(e)
        self._observation[e] = 0
        for i, agent in enumerate(self._agents):
            ends = terminations.get(agent), truncations.get(agent)
            over, cut = (end is not None and bool(self._number(e, i, end, NO_FLAG)) for end in ends)
            stays = agent in listed and not (over or cut)
            if took_part[i]:
                # Terminated and truncated at once is terminated. So is leaving with neither: nothing to bootstrap from.
                over = over or not (agent in listed or cut)
                terminated[i] = over
                if agent in listed and agent not in rewards:  # an agent that has left may have none
                    raise UserError(f"{self.where(e, i)} got no reward, but is still in the list `agents`.")
                with np.errstate(over="ignore"):  # infinity is refused after the step
                    reward[i] = self._number(e, i, rewards.get(agent, 0.0), NO_REWARD)
            self.present[e, i] = stays
            if stays or (took_part[i] and (agent in observations or not over)):
                self._observe(e, i, observations, infos)

    def _asked(self, e: int, method: str, parts: str, *arguments: Any, **named: Any) -> tuple[dict, ...]:
        """What a method of copy e returns, if these parts are dictionaries by agent; infos may be anything."""
        result = self._call(e, method, *arguments, **named)
        several = isinstance(result, tuple | list) and len(result) == parts.count(",") + 1
        if not several or not all(isinstance(part, Mapping) for part in result[:-1]):
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
            if method == "reset" and isinstance(error, TypeError) and not takes_seed(world):
                sentence = f"reset() of {self.spec.name} must take a seed: reset(seed=None, options=None)."
                raise UserError(sentence) from error
            raise fault(self.spec.name, method, error) from error

    def _number(self, e: int, i: int, value: Any, wrong: str) -> float:
        """The one number that agent i of copy e was given, perhaps in an array; otherwise what is `wrong` with {}."""
        if isinstance(value, bool | float):  # nearly always, and quicker
            return value
        with contextlib.suppress(TypeError, ValueError, RuntimeError):  # rows of different lengths, tensors elsewhere
            array = np.asarray(value)
            if array.size == 1 and array.dtype.kind in "biuf":
                return array.item()
        raise UserError(f"{self.where(e, i)} got {wrong.format(in_short(value))}.")

    def _observe(self, e: int, i: int, observations: dict, infos: Any) -> None:
        """Write what agent i of copy e sees; the rest of its row is padding."""
        agent = self._agents[i]
        vector = encode(self._observation_spaces[i], observations[agent]) if agent in observations else None
        if vector is None:
            raise UserError(f"{self.where(e, i)} got no observation that matches its observation space.")
        begin = 0
        if self.spec.masked:
            begin = self.spec.action_sizes[i]
            given = observations[agent] if self._has_mask[i] else _of_agent(infos, agent) if self._masks else {}
            self._observation[e, i, :begin] = self._legal(e, i, given)
        self._observation[e, i, begin : begin + vector.size] = vector

    def _legal(self, e: int, i: int, given: Mapping) -> Array:
        """The action mask of agent i of copy e, (A,); all ones if it is not given."""
        legal, space = np.ones(self.spec.action_sizes[i], np.float32), self._action_spaces[i]
        if MASK not in given or not is_choice(space):
            return legal
        if (mask := legal_choices(space, given[MASK])) is None:
            raise UserError(f"{self.where(e, i)} got an {MASK} that is not one number per choice.")
        for block in (block for own, block in self.spec.each_choice if own == i):
            if mask[block].any():
                legal[block] = mask[block]
            elif self.present[e, i]:
                raise UserError(f"{self.where(e, i)} got an {MASK} without any legal choice.")
        return legal

    def _listed(self, e: int) -> set:
        """The agents that copy e says are active."""
        try:
            listed = set(self._worlds[e].agents)
        except (AttributeError, TypeError) as error:
            sentence = f"{self.spec.name} must have a list `agents` of those who take part, set by reset()."
            raise UserError(sentence) from error
        if not listed.issubset(self._agents):
            unknown = next(iter(listed.difference(self._agents)))
            raise UserError(f"{self.spec.name} has an agent '{unknown}' that is not one of its possible_agents.")
        return listed

    def _check_finite(self, what: str, values: Array) -> None:
        """Raise where `values` (E, N, any) that came from a copy have NaN or infinity in them."""
        if not np.isfinite(values).all():
            e, i, _ = np.argwhere(~np.isfinite(values))[0]
            raise UserError(f"{self.where(e, i)} got NaN or infinity in its {what}; all numbers must be finite.")


def _of_agent(infos: Any, agent: Any) -> Mapping:
    """An agent's part of the infos, which may be anything."""
    info = infos.get(agent) if isinstance(infos, Mapping) else None
    return info if isinstance(info, Mapping) else {}


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


def differs(name: str) -> UserError:
    """The error where copies, in this process or in a worker, are not alike."""
    return UserError(f"{name} differs from copy to copy, but all must have the same agents and spaces.")


def _agents_and_spaces(name: str, world: ParallelWorld) -> tuple[list[Any], list[Space[Any]], list[Space[Any]]]:
    """The agents of a copy, with the spaces of what they see and do."""
    agents = list(world.possible_agents)
    if len(set(agents)) < len(agents):
        raise UserError(f"{name} has an agent twice among its possible_agents: {in_short(agents)}.")
    kinds = ("observation_space", "action_space")
    observation_spaces, action_spaces = ([_space(name, world, kind, agent) for agent in agents] for kind in kinds)
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
