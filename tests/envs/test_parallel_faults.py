"""Foreign environments that break the rules: forgiven where the meaning is plain, else a sentence."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from relay import ACTION_SPACES, STAY, Relay, make

from shoal.envs import make_env, parallel
from shoal.envs.parallel import ParallelCopies
from shoal.errors import UserError

PLACE = r"\(own_worlds\.py:\d+ in step\)"


class Unseeded(Relay):
    """An environment that does not listen to its seed; the second reset lets everybody leave at once."""

    resets = 0

    def reset(self, seed=None, options=None):
        self.resets += 1
        self.limit = 9 if self.resets == 1 else 1
        return super().reset(seed=self.resets)


def test_nondeterministic_environment_causes_a_warning():
    env = ParallelCopies("unseeded", [Unseeded(STAY)], 0, None, False)
    env.reset()
    for _ in range(3):
        env.step(np.zeros((1, 3, 4)))
    with pytest.warns(UserWarning, match="unseeded does not repeat"):
        env.load_state(env.state())
    assert env.episode_step[0] == 0
    env.step(np.zeros((1, 3, 4)))


def test_exit_inside_an_environment_is_an_error():
    env = make_env("gym:own_worlds:Fatal", copies=2, options={"how": "exit", "only": 1})
    env.reset()
    for _ in range(2):
        env.step([[1], [1]])
    with pytest.raises(UserError, match=rf"^gym:own_worlds:Fatal called sys\.exit\(0\) in step\(\) {PLACE}\.$"):
        env.step([[1], [1]])


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("how", "words"),
    [("exit", r"called sys\.exit\(0\) when it was"), ("raise", "could not be closed: the door is stuck")],
)
def test_failing_close_warns_once(how, words, workers):
    parallel.warn_once.cache_clear()
    with pytest.warns(UserWarning, match=rf"^gym:own_worlds:Sticky {words}") as told:
        for _ in range(2):
            env = make_env("gym:own_worlds:Sticky", copies=4, workers=workers, options={"how": how})
            env.reset()
            env.step([[1]] * 4)
            env.close()
    assert len(told) == 1


def answer(number, value):
    """The relay's answers to step with one part replaced: 0 observations, 1 rewards, 2 terminations, 3 truncations."""

    def step(self, actions):
        parts = list(Relay.step(self, actions))
        parts[number] = value(parts[number])
        return tuple(parts)

    return {"step": step}


def raising(error, depth=0):
    """A method that raises this, so many calls deeper."""

    def method(self, *arguments, **named):
        if depth:
            return raising(error, depth - 1)(self)
        raise error

    return method


def without_a_list(self, seed=None, options=None):
    found = Relay.reset(self, seed)
    del self.agents
    return found


def nobody(self, seed=None, options=None):
    Relay.reset(self, seed)
    self.agents = []
    return {}, {}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"step": lambda self, actions: None}, r"^step\(\) of odd must return observations, rewards, terminations, "),
        ({"step": lambda self, actions: Relay.step(self, actions)[:4]}, r"^step\(\) of odd must return"),
        (answer(1, lambda rewards: [1, 2, 3]), "each a dictionary by agent"),
        (answer(1, lambda rewards: dict.fromkeys(rewards, "3")), "got the reward '3', which is not a number"),
        (answer(1, lambda rewards: dict.fromkeys(rewards, 10**400)), "got the reward 1000.*, which is not a number"),
        (answer(1, lambda rewards: dict.fromkeys(rewards, 1j)), "got the reward 1j, which is not a number"),
        (answer(1, lambda rewards: dict.fromkeys(rewards, np.zeros(2))), "got the reward array"),
        (answer(1, lambda rewards: dict.fromkeys(rewards, 1e300)), "got NaN or infinity in its reward"),
        (
            answer(2, lambda ends: dict.fromkeys(ends, np.zeros(2))),
            "for terminated or truncated, which is not true or false",
        ),
        (answer(1, lambda rewards: {}), "'scout' in copy 0 of odd got no reward, but is still in the list `agents`"),
        (
            answer(1, lambda rewards: {agent: [[1], [2, 3]] for agent in rewards}),
            r"got the reward \[\[1\], \[2, 3\]\], which",
        ),
        (
            answer(2, lambda ends: {agent: {"score": 1} for agent in ends}),
            "got {'score': 1} for terminated or truncated, which is not true",
        ),
        (
            answer(3, lambda ends: dict.fromkeys(ends, "no")),
            "got 'no' for terminated or truncated, which is not true or false",
        ),
        ({"reset": without_a_list}, "odd must have a list `agents` of those who take part, set by reset"),
        ({"reset": nobody}, r"odd has an empty list `agents` after reset\(\), so there is no episode"),
        ({"reset": lambda self, seed=None, options=None: {}}, r"^reset\(\) of odd must return observations, infos"),
        ({"reset": lambda self: None}, r"^reset\(\) of odd must take a seed"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_malformed_return_values_are_refused(changed, words):
    env = ParallelCopies("odd", [type("Odd", (Relay,), changed)(STAY)], 0, None, False)
    with pytest.raises(UserError, match=words):
        env.reset()
        env.step(np.zeros((1, 3, 4)))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"step": raising(RuntimeError("no\nlight."))}, r"raised RuntimeError in step\(\): no light \(PLACE\)\."),
        ({"step": raising(AssertionError())}, r"raised AssertionError in step\(\) \(PLACE\)\."),
        ({"step": raising(KeyError("x"), 5)}, r"raised KeyError in step\(\): 'x' \(PLACE, PLACE, PLACE\)\."),
        ({"reset": raising(ValueError("?"))}, r"raised ValueError in reset\(\) \(PLACE\)\."),
        (
            {"reset": raising(TypeError("f() got an unexpected keyword argument 'seed'"))},
            r"raised TypeError in reset.*",
        ),
        ({"observation_space": raising(OSError("gone"))}, r"raised OSError in observation_space\(\): gone \(PLACE\)\."),
    ],
)
def test_exceptions_of_an_environment_become_user_errors(changed, sentence):
    place = rf"{Path(__file__).name}:\d+ in method"
    with pytest.raises(UserError, match=f"^odd {sentence.replace('PLACE', place)}$") as error:
        env = ParallelCopies("odd", [type("Odd", (Relay,), changed)(STAY)], 0, None, False)
        env.reset()
        env.step(np.zeros((1, 3, 4)))
    assert isinstance(error.value.__cause__, Exception)


@pytest.mark.parametrize("error", [UserError("mine."), MemoryError(), KeyboardInterrupt()], ids=repr)
def test_other_exceptions_are_not_converted(error):
    env = ParallelCopies("odd", [type("Odd", (Relay,), {"step": raising(error)})(STAY)], 0, None, False)
    env.reset()
    with pytest.raises(type(error)) as raised:
        env.step(np.zeros((1, 3, 4)))
    assert raised.value is error


def test_missing_reward_of_a_departing_agent_is_zero():
    plan = {**STAY, "scout": (0, 1, "terminated")}
    changed = answer(1, lambda rewards: {agent: 2.0 for agent in rewards if agent != "scout"})
    env = ParallelCopies("odd", [type("Odd", (Relay,), changed)(plan)], 0, None, False)
    env.reset()
    assert env.step(np.zeros((1, 3, 4))).reward.tolist() == [[0, 2, 2]]


class Fewer(Relay):
    """One agent less."""

    def __init__(self):
        super().__init__(STAY)
        self.possible_agents = ["scout", "carrier"]


class Elsewhere(Relay):
    """Sees as many numbers, with other bounds."""

    def observation_space(self, agent):
        return spaces.Box(-1, 1, super().observation_space(agent).shape, np.float64)


@pytest.mark.parametrize(
    "other", [Fewer(), Elsewhere(STAY), Relay(STAY, action_spaces={**ACTION_SPACES, "guard": spaces.Discrete(4)})]
)
def test_copies_with_different_spaces_are_refused(other):
    with pytest.raises(UserError, match=r"^relay differs from copy to copy, but all must have the same agents and"):
        ParallelCopies("relay", [Relay(STAY), Relay(STAY), other], 0, None, False)


def test_agent_ids_may_be_objects():
    """Their text has an address in it, but they are equal in every copy."""

    @dataclass(frozen=True, repr=False)
    class Robot:
        name: str

    class Robots(Relay):
        def __init__(self):
            super().__init__(STAY)
            self.possible_agents = [Robot(name) for name in self.possible_agents]

        def observation_space(self, agent):
            return super().observation_space(agent.name)

        def action_space(self, agent):
            return super().action_space(agent.name)

    assert ParallelCopies("robots", [Robots(), Robots()], 0, None, False).spec.agents == 3


def test_none_as_truncation_is_refused():
    """As from info.get("TimeLimit.truncated")."""
    never = answer(3, lambda ends: dict.fromkeys(ends))
    env = ParallelCopies("odd", [type("Odd", (Relay,), never)(STAY)], 0, None, False)
    env.reset()
    assert not env.step(np.zeros((1, 3, 4))).truncated.any()


def test_duplicate_agents_are_refused():
    twice = Relay(STAY)
    twice.possible_agents = ["scout", "scout"]
    with pytest.raises(UserError, match=r"twin has an agent twice among its possible_agents: \['scout', 'scout'\]"):
        ParallelCopies("twin", [twice], 0, None, False)


class Lingering(Relay):
    """Keeps agents on its list after they have left, with their flags up, until all have left."""

    def reset(self, seed=None, options=None):
        self.over, self.cut = {}, {}
        return super().reset(seed, options)

    def step(self, actions):
        observations, rewards, terminated, truncated, infos = super().step(actions)
        self.over |= {agent: True for agent in terminated if terminated[agent]}
        self.cut |= {agent: True for agent in truncated if truncated[agent]}
        self.agents = [] if len(self.over | self.cut) == 3 else list(self.possible_agents)
        return observations, rewards, terminated | self.over, truncated | self.cut, infos


def test_agents_still_listed_after_their_end_are_departed():
    plan = {"scout": (0, 1, "terminated"), "carrier": (0, 2, "truncated"), "guard": (0, 4, "terminated")}
    env = ParallelCopies("lingering", [Lingering(plan)], 0, None, False)
    env.reset()
    steps = [env.step(np.zeros((1, 3, 4))) for _ in range(4)]
    there = [[1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 1]]
    assert [list(s.alive[0]) for s in steps] == there
    assert [list(s.reward[0] != 0) for s in steps] == there
    assert [list(s.final_observation[0].any(1)) for s in steps] == there
    assert [list(s.terminated[0]) for s in steps] == [[1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert [s.ended[0] for s in steps] == [0, 0, 0, 1] and not steps[3].truncated[0]


class Silent(Relay):
    """Takes agents off its list with no flag and no last observation."""

    def step(self, actions):
        observations, rewards, terminated, truncated, infos = super().step(actions)
        left = [agent for agent in terminated if terminated[agent]]
        return {a: o for a, o in observations.items() if a not in left}, rewards, {}, truncated, infos


def test_unannounced_departure_is_a_termination():
    plan = {"scout": (0, 1, "terminated"), "carrier": (0, 2, "terminated"), "guard": (0, 2, "terminated")}
    env = ParallelCopies("silent", [Silent(plan)], 0, None, False)
    env.reset()
    first, second = (env.step(np.zeros((1, 3, 4))) for _ in range(2))
    assert list(first.terminated[0]) == [1, 0, 0] and list(first.observation[0].any(1)) == [0, 1, 1]
    assert list(second.terminated[0]) == [0, 1, 1] and second.ended[0] and not second.truncated[0]


class Faulty(Relay):
    """Spoils one thing: in what its second step returns, or in what a reset returns."""

    def __init__(self, spoil_step=None, spoil_reset=None, limit=9):
        super().__init__(STAY, limit)
        self.spoil_step, self.spoil_reset = spoil_step, spoil_reset

    def reset(self, seed=None, options=None):
        observations, infos = super().reset(seed, options)
        if self.spoil_reset:
            observations.update(guard=np.full(5, np.nan))
        return observations, infos

    def step(self, actions):
        observations, rewards, terminated, truncated, infos = super().step(actions)
        if self.time == 2 and self.spoil_step:
            self.spoil_step(self, observations, rewards, truncated)
        return observations, rewards, terminated, truncated, infos


def cut_without_a_view(world, observations, rewards, truncated):
    """Truncate one agent alone and show it nothing: there would be nothing to bootstrap from."""
    truncated.update(carrier=True)
    observations.pop("carrier")
    world.agents = [agent for agent in world.agents if agent != "carrier"]


FAULTS = {
    "NaN observation": (lambda w, o, r, t: o.update(carrier=[np.nan]), "'carrier' in copy 1 of faulty"),
    "infinite observation": (lambda w, o, r, t: o.update(guard=[0, 0, 0, 0, -np.inf]), "'guard' in copy 1 of faulty"),
    "long observation": (lambda w, o, r, t: o.update(scout=[1, 2, 3, 4]), "'scout' in copy 1 of faulty"),
    "no observation": (lambda w, o, r, t: o.pop("scout"), "'scout' in copy 1 of faulty"),
    "no last observation": (cut_without_a_view, "'carrier' in copy 1 of faulty got no observation"),
    "NaN reward": (lambda w, o, r, t: r.update(carrier=np.nan), "'carrier' in copy 1 of faulty got NaN"),
    "infinite reward": (lambda w, o, r, t: r.update(guard=np.inf), "'guard' in copy 1 of faulty got NaN or infinity"),
    "unknown agent": (lambda w, o, r, t: w.agents.append("spy"), "an agent 'spy' that is not one of"),
}


@pytest.mark.parametrize("limit", [9, 2], ids=["under way", "at the end"])
@pytest.mark.parametrize(("spoil", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_wrong_step_results_are_refused(spoil, words, limit):
    env = ParallelCopies("faulty", [Relay(STAY), Faulty(spoil, limit=limit)], 0, None, False)
    env.reset()
    env.step(np.zeros((2, 3, 4)))
    with pytest.raises(UserError, match=words) as error:
        env.step(np.zeros((2, 3, 4)))
    assert "\n" not in str(error.value)


def test_wrong_reset_results_are_refused():
    world = Faulty(spoil_reset=True, limit=2)
    env = ParallelCopies("faulty", [world], 0, None, False)
    with pytest.raises(UserError, match="'guard' in copy 0 of faulty got NaN or infinity in its observation"):
        env.reset()
    world.spoil_reset = False
    env.reset()
    world.spoil_reset = True
    env.step(np.zeros((1, 3, 4)))
    with pytest.raises(UserError, match="'guard' in copy 0 of faulty got NaN or infinity in its observation"):
        env.step(np.zeros((1, 3, 4)))


@pytest.mark.parametrize("shape", [(3, 4), (2, 3), (1, 3, 4), (2, 4, 3), (2, 3, 5), ()])
def test_wrong_action_shape_is_refused(shape):
    env, _ = make(STAY, 2)
    env.reset()
    with pytest.raises(UserError, match=r"must have \(2, 3, 4\)"):
        env.step(np.zeros(shape))


def test_non_numeric_actions_are_refused():
    env, _ = make({**STAY, "carrier": (5, 9, "both")}, 2)
    env.reset()
    actions = np.zeros((2, 3, 4))
    actions[1, 0, 2:] = np.nan  # padding
    actions[1, 1] = np.nan  # an agent that is not there yet
    env.step(actions)
    actions[1, 2, 0] = np.inf
    with pytest.raises(UserError, match="'guard' in copy 1 of relay was given an action"):
        env.step(actions)


def test_step_before_reset_is_refused():
    env, _ = make(STAY)
    for use in (lambda: env.step(np.zeros((1, 3, 4))), env.state):
        with pytest.raises(UserError, match="call reset"):
            use()


def test_state_of_another_shape_is_refused():
    env, _ = make(STAY, 2)
    env.reset()
    with pytest.raises(UserError, match=r"\(2, 3, 4\).*\(3, 3, 4\)"):
        make(STAY, 3)[0].load_state(env.state())
