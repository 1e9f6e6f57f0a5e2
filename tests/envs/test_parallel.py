"""Copies of foreign environments, step by step against what the plain environment itself returns."""

from collections import Counter

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo import ParallelEnv

from shoal.envs.parallel import ParallelCopies, episode_seed
from shoal.errors import UserError

OBSERVATION_SIZES = {"scout": 3, "carrier": 1, "guard": 5}
ACTION_SPACES = {"scout": spaces.Discrete(2), "carrier": spaces.Discrete(4, start=1), "guard": spaces.Discrete(3)}
BOXES = {"scout": spaces.Box(-1, 1, (2,)), "carrier": spaces.Box(0, 5, (4,)), "guard": spaces.Box(-2, 0, (3,))}


class Relay(ParallelEnv):
    """Agents come and go by plan; what they see depends on the seed, on the time and on everything played."""

    def __init__(self, plan, limit=9, action_spaces=ACTION_SPACES):
        """`plan` gives each agent (arrives after step, leaves at step, how); how: terminated, truncated or both."""
        self.plan, self.limit, self.action_spaces = plan, limit, action_spaces
        self.possible_agents = list(OBSERVATION_SIZES)
        self.received = []

    def observation_space(self, agent):
        return spaces.Box(-np.inf, np.inf, (OBSERVATION_SIZES[agent],), np.float64)

    def action_space(self, agent):
        return self.action_spaces[agent]

    def reset(self, seed=None, options=None):
        self.random = np.random.default_rng(seed)
        self.time, self.trace = 0, 0.0
        self.agents = [agent for agent in self.possible_agents if self.plan[agent][0] == 0]
        return {agent: self._see(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        assert all(self.action_spaces[agent].contains(action) for agent, action in actions.items())
        self.received.append(actions)
        self.time += 1
        self.trace = np.sin(self.trace + sum(float(np.sum(action)) for action in actions.values()))
        terminated, truncated = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        for agent in self.agents:
            _, leaves, how = self.plan[agent]
            terminated[agent] = leaves == self.time and how in ("terminated", "both")
            truncated[agent] = self.time >= self.limit or (leaves == self.time and how in ("truncated", "both"))
        rewards = {agent: self.random.normal() + self.trace for agent in self.agents}
        gone = [agent for agent in self.agents if terminated[agent] or truncated[agent]]
        come = [agent for agent in self.possible_agents if self.plan[agent][0] == self.time]
        observations = {agent: self._see(agent) for agent in [*self.agents, *come]}
        self.agents = [agent for agent in [*self.agents, *come] if agent not in gone]
        return observations, rewards, terminated, truncated, {agent: {} for agent in observations}

    def _see(self, agent):
        return self.random.normal(size=OBSERVATION_SIZES[agent]) + self.time + self.trace

    def close(self):
        self.received = None


def rows(observations):
    """(N, O) observations padded by hand."""
    return np.float32(
        [
            [*np.ravel(observations.get(agent, [])), *[0] * (5 - (agent in observations) * size)]
            for agent, size in OBSERVATION_SIZES.items()
        ]
    )


def make(plan, copies=1, limit=9, action_spaces=ACTION_SPACES, seed=3, episode_length=None, stagger=False):
    worlds = [Relay(plan, limit, action_spaces) for _ in range(copies)]
    return ParallelCopies("relay", worlds, seed, episode_length, stagger), worlds


def as_played(space, vector):
    """What the vector means, in plain words: the largest of the real entries, or the nearest point of the box."""
    if isinstance(space, spaces.Discrete):
        return int(space.start) + int(np.argmax(vector[: space.n]))
    return np.clip(vector[: space.shape[0]], space.low, space.high)


LEAVES = st.tuples(st.integers(1, 9), st.sampled_from(["terminated", "truncated", "both"]))
PLANS = st.fixed_dictionaries(
    {
        "scout": LEAVES.map(lambda leave: (0, *leave)),
        "carrier": st.tuples(st.integers(0, 3), LEAVES).map(lambda plan: (plan[0], plan[0] + plan[1][0], plan[1][1])),
        "guard": st.tuples(st.integers(0, 3), LEAVES).map(lambda plan: (plan[0], plan[0] + plan[1][0], plan[1][1])),
    }
)


@settings(max_examples=60, deadline=None)
@given(plan=PLANS, limit=st.integers(2, 8), episode_length=st.none() | st.integers(1, 8), box=st.booleans())
def test_every_step_is_the_plain_environments_step(plan, limit, episode_length, box):
    action_spaces = BOXES if box else ACTION_SPACES
    env, worlds = make(plan, 2, limit, action_spaces, episode_length=episode_length)
    plain = [Relay(plan, limit, action_spaces) for _ in range(2)]
    random, episode = np.random.default_rng(0), [0, 0]
    observation = env.reset()
    for e in range(2):
        np.testing.assert_array_equal(observation[e], rows(plain[e].reset(seed=episode_seed(3, e, 0))[0]))
    for _ in range(20):
        actions = random.normal(0, 3, (2, 3, 4)).astype(np.float32)
        step = env.step(actions)
        for e, world in enumerate(plain):
            before = list(world.agents)
            chosen = {a: as_played(action_spaces[a], actions[e, list(OBSERVATION_SIZES).index(a)]) for a in before}
            observations, rewards, over, cut, _ = world.step(chosen)
            own_cut = world.time == episode_length and len(world.agents) > 0
            assert list(step.alive[e]) == [a in before for a in world.possible_agents]
            assert list(step.terminated[e]) == [over.get(a, False) for a in world.possible_agents]
            assert step.ended[e] == (own_cut or not world.agents)
            assert step.truncated[e] == (own_cut or (not world.agents and any(cut[a] and not over[a] for a in before)))
            np.testing.assert_array_equal(step.reward[e], np.float32([rewards.get(a, 0) for a in OBSERVATION_SIZES]))
            np.testing.assert_array_equal(step.final_observation[e], rows(observations))
            np.testing.assert_equal(worlds[e].received[-1], chosen)
            if step.ended[e]:
                episode[e] += 1
                observations, _ = world.reset(seed=episode_seed(3, e, episode[e]))
            np.testing.assert_array_equal(step.observation[e], rows(observations))
            assert env.episode_step[e] == world.time


def test_one_episode_told_by_hand():
    plan = {"scout": (0, 2, "terminated"), "carrier": (0, 3, "truncated"), "guard": (1, 4, "both")}
    env, _ = make(plan)
    env.reset()
    steps = [env.step(np.zeros((1, 3, 4))) for _ in range(5)]
    assert [list(s.alive[0]) for s in steps] == [[1, 1, 0], [1, 1, 1], [0, 1, 1], [0, 0, 1], [1, 1, 0]]
    assert [list(s.terminated[0]) for s in steps] == [[0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert [s.ended[0] for s in steps] == [0, 0, 0, 1, 0]
    assert not any(s.truncated[0] for s in steps)
    seen = [list(s.final_observation[0].any(1)) for s in steps[:4]]
    assert seen == [[1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 0, 1]]
    assert list(steps[3].observation[0].any(1)) == [1, 1, 0]
    assert [list(s.reward[0] != 0) for s in steps[:4]] == [[1, 1, 0], [1, 1, 1], [0, 1, 1], [0, 0, 1]]


@pytest.mark.parametrize(
    ("leave", "limit", "episode_length", "terminated", "truncated"),
    [
        ((4, "terminated"), 9, None, True, False),
        ((4, "both"), 9, None, True, False),
        ((4, "truncated"), 9, None, False, True),
        ((4, "terminated"), 4, None, True, False),
        ((4, "terminated"), 9, 4, True, False),
        ((9, "terminated"), 4, None, False, True),
        ((9, "terminated"), 9, 4, False, True),
    ],
)
def test_termination_and_truncation_are_told_apart(leave, limit, episode_length, terminated, truncated):
    env, _ = make(dict.fromkeys(OBSERVATION_SIZES, (0, *leave)), 1, limit, episode_length=episode_length)
    env.reset()
    *earlier, last = [env.step(np.zeros((1, 3, 4))) for _ in range(4)]
    assert not any(step.ended[0] or step.truncated[0] or step.terminated.any() for step in earlier)
    assert last.ended[0] and last.truncated[0] == truncated and (last.terminated == terminated).all()


def test_one_terminates_while_the_rest_is_cut():
    env, _ = make({"scout": (0, 4, "terminated"), "carrier": (0, 9, "both"), "guard": (0, 9, "both")}, limit=4)
    env.reset()
    step = [env.step(np.zeros((1, 3, 4))) for _ in range(4)][-1]
    assert step.truncated[0] and list(step.terminated[0]) == [True, False, False]
    assert step.final_observation[0].any(1).all()


STAY = dict.fromkeys(OBSERVATION_SIZES, (0, 99, "both"))


def test_spec():
    spec = make(STAY, 2, episode_length=7)[0].spec
    assert spec.name == "relay" and spec.agent_names == ("scout", "carrier", "guard") and spec.agents == 3
    assert spec.observation_sizes == (3, 1, 5) and spec.action_sizes == (2, 4, 3) and spec.padded
    assert spec.discrete and spec.action_low is None and spec.action_high is None
    assert spec.episode_length == 7 and not spec.fixed_length and not spec.soft_actions
    spec = make(STAY, action_spaces=BOXES)[0].spec
    assert not spec.discrete and spec.episode_length is None
    np.testing.assert_array_equal(spec.action_low, np.float32([[-1, -1, 0, 0], [0, 0, 0, 0], [-2, -2, -2, 0]]))
    np.testing.assert_array_equal(spec.action_high, np.float32([[1, 1, 0, 0], [5, 5, 5, 5], [0, 0, 0, 0]]))


def test_staggered_copies_end_at_different_times_once():
    env, _ = make(STAY, copies=4, limit=99, episode_length=8, stagger=True)
    env.reset()
    assert list(env.episode_step) == [0, 2, 4, 6]
    ends = [(t, e) for t in range(1, 17) for e in np.flatnonzero(env.step(np.zeros((4, 3, 4))).truncated)]
    assert ends == [(2, 3), (4, 2), (6, 1), (8, 0), (10, 3), (12, 2), (14, 1), (16, 0)]


def test_no_staggering_without_a_length_or_without_the_wish():
    for options in ({"stagger": True}, {"episode_length": 8, "stagger": False}):
        env, _ = make(STAY, copies=4, **options)
        env.reset()
        assert not env.episode_step.any()


def test_seeds_differ_over_copies_and_episodes_and_repeat():
    drawn = Counter(episode_seed(seed, e, k) for seed in range(5) for e in range(20) for k in range(20))
    assert len(drawn) == 2000 and all(0 <= value < 2**31 for value in drawn)
    first, again, other = (make(STAY, 3, seed=seed)[0] for seed in (3, 3, 4))
    observation = first.reset()
    np.testing.assert_array_equal(observation, again.reset())
    assert not np.array_equal(observation, other.reset())
    assert not np.array_equal(observation[0], observation[1])
    assert not np.array_equal(observation, first.reset())


@settings(max_examples=30, deadline=None)
@given(plan=PLANS, steps=st.integers(0, 25), box=st.booleans())
def test_a_saved_state_has_the_same_future(plan, steps, box):
    def fresh(seed):
        return make(plan, 3, 8, BOXES if box else ACTION_SPACES, seed=seed, episode_length=6, stagger=True)[0]

    random, env, other = np.random.default_rng(steps), fresh(3), fresh(99)
    env.reset()
    for _ in range(steps):
        env.step(random.normal(size=(3, 3, 4)))
    other.load_state(env.state())
    np.testing.assert_equal(other.state(), env.state())
    for _ in range(15):
        actions = random.normal(size=(3, 3, 4))
        np.testing.assert_equal(other.step(actions), env.step(actions))
        np.testing.assert_array_equal(other.episode_step, env.episode_step)


def test_what_was_returned_and_given_stays_as_it_was():
    env, worlds = make(STAY, action_spaces=BOXES)
    observation, actions = env.reset(), np.full((1, 3, 4), 0.25, np.float32)
    kept, first = observation.copy(), env.step(actions)
    kept_first = first.observation.copy()
    actions[:] = 0.75
    state, episode_step = env.state(), env.episode_step
    env.step(actions)
    assert list(episode_step) == [1] == list(state["episode_step"])
    np.testing.assert_array_equal(observation, kept)
    np.testing.assert_array_equal(first.observation, kept_first)
    np.testing.assert_array_equal(state["actions"][0, 0], np.full((3, 4), 0.25))
    env.close()
    assert worlds[0].received is None


class Unseeded(Relay):
    """An environment that does not listen to its seed; the second reset lets everybody leave at once."""

    resets = 0

    def reset(self, seed=None, options=None):
        self.resets += 1
        self.limit = 9 if self.resets == 1 else 1
        return super().reset(seed=self.resets)


def test_an_environment_that_does_not_repeat_itself_is_told():
    env = ParallelCopies("unseeded", [Unseeded(STAY)], 0, None, False)
    env.reset()
    for _ in range(3):
        env.step(np.zeros((1, 3, 4)))
    with pytest.warns(UserWarning, match="unseeded does not repeat"):
        env.load_state(env.state())
    assert env.episode_step[0] == 0
    env.step(np.zeros((1, 3, 4)))


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


def test_agents_that_stay_listed_after_their_end_have_still_left():
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


def test_leaving_without_a_word_is_an_end():
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
def test_what_a_step_does_wrong_is_a_sentence(spoil, words, limit):
    env = ParallelCopies("faulty", [Relay(STAY), Faulty(spoil, limit=limit)], 0, None, False)
    env.reset()
    env.step(np.zeros((2, 3, 4)))
    with pytest.raises(UserError, match=words) as error:
        env.step(np.zeros((2, 3, 4)))
    assert "\n" not in str(error.value)


def test_what_a_reset_does_wrong_is_a_sentence():
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


@pytest.mark.parametrize("shape", [(3, 4), (1, 3, 4), (2, 4, 3), (2, 3, 5), ()])
def test_wrong_action_shape(shape):
    env, _ = make(STAY, 2)
    env.reset()
    with pytest.raises(UserError, match=r"must have \(2, 3, 4\)"):
        env.step(np.zeros(shape))


def test_actions_that_are_not_numbers():
    env, _ = make({**STAY, "carrier": (5, 9, "both")}, 2)
    env.reset()
    actions = np.zeros((2, 3, 4))
    actions[1, 0, 2:] = np.nan  # padding
    actions[1, 1] = np.nan  # an agent that is not there yet
    env.step(actions)
    actions[1, 2, 0] = np.inf
    with pytest.raises(UserError, match="'guard' in copy 1 of relay was given an action"):
        env.step(actions)


def test_use_before_reset():
    env, _ = make(STAY)
    for use in (lambda: env.step(np.zeros((1, 3, 4))), env.state):
        with pytest.raises(UserError, match="call reset"):
            use()


def test_a_state_of_another_shape():
    env, _ = make(STAY, 2)
    env.reset()
    with pytest.raises(UserError, match=r"\(2, 3, 4\).*\(3, 3, 4\)"):
        make(STAY, 3)[0].load_state(env.state())


def test_mixed_kinds_of_actions():
    with pytest.raises(UserError, match="'scout' of relay has discrete actions and agent 'guard' a box"):
        make(STAY, action_spaces={**ACTION_SPACES, "guard": BOXES["guard"]})
