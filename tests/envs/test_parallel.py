"""Copies of foreign environments, step by step against what the plain environment itself returns."""

from collections import Counter

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from own_worlds import Masked
from relay import ACTION_SPACES, BOXES, OBSERVATION_SIZES, STAY, Relay, make

from shoal.envs.base import group_of
from shoal.envs.parallel import ParallelCopies, episode_seed
from shoal.errors import UserError


def rows(observations):
    """(N, O) observations padded by hand."""
    return np.float32(
        [
            [*np.ravel(observations.get(agent, [])), *[0] * (5 - (agent in observations) * size)]
            for agent, size in OBSERVATION_SIZES.items()
        ]
    )


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
def test_steps_equal_those_of_the_plain_environment(plan, limit, episode_length, box):
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


def test_one_episode_by_hand():
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
def test_termination_and_truncation_are_distinguished(leave, limit, episode_length, terminated, truncated):
    env, _ = make(dict.fromkeys(OBSERVATION_SIZES, (0, *leave)), 1, limit, episode_length=episode_length)
    env.reset()
    *earlier, last = [env.step(np.zeros((1, 3, 4))) for _ in range(4)]
    assert not any(step.ended[0] or step.truncated[0] or step.terminated.any() for step in earlier)
    assert last.ended[0] and last.truncated[0] == truncated and (last.terminated == terminated).all()


def test_one_agent_terminates_while_the_others_are_truncated():
    env, _ = make({"scout": (0, 4, "terminated"), "carrier": (0, 9, "both"), "guard": (0, 9, "both")}, limit=4)
    env.reset()
    step = [env.step(np.zeros((1, 3, 4))) for _ in range(4)][-1]
    assert step.truncated[0] and list(step.terminated[0]) == [True, False, False]
    assert step.final_observation[0].any(1).all()


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


def test_whole_numbers_are_choices_counted_from_0():
    """Also where an environment counts its own from 1, as the carrier's."""
    env, worlds = make({**STAY, "guard": (2, 99, "both")}, 2)
    env.reset()
    env.step([[0, 0, 99], [1, 3, -1]])  # the guard is not there yet
    assert [world.received for world in worlds] == [[{"scout": 0, "carrier": 1}], [{"scout": 1, "carrier": 4}]]
    with pytest.raises(UserError, match="'carrier' in copy 1 of relay was given choice 4, but its choices are 0 to 3"):
        env.step([[0, 0, 0], [0, 4, 0]])


def test_sampled_actions_are_valid():
    for action_spaces in (ACTION_SPACES, BOXES):
        env, worlds = make(STAY, 2, limit=99, action_spaces=action_spaces)  # which checks what it is given
        env.reset()
        for _ in range(50):
            actions = env.sample_actions()
            env.step(actions)
            for i, (agent, space) in enumerate(action_spaces.items()):
                played = worlds[1].received[-1][agent]
                vector = actions[1, i]
                assert played == as_played(space, vector) if env.spec.discrete else np.isin(played, vector).all()
        assert len({str(played["carrier"]) for played in worlds[0].received}) >= 4


def test_staggered_copies_end_at_different_times_once():
    env, _ = make(STAY, copies=4, limit=99, episode_length=8, stagger=True)
    env.reset()
    assert list(env.episode_step) == [0, 2, 4, 6]
    ends = [(t, e) for t in range(1, 17) for e in np.flatnonzero(env.step(np.zeros((4, 3, 4))).truncated)]
    assert ends == [(2, 3), (4, 2), (6, 1), (8, 0), (10, 3), (12, 2), (14, 1), (16, 0)]


def test_no_staggering_without_episode_length_or_stagger():
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
def test_restored_state_has_the_same_future(plan, steps, box):
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


def test_returned_and_passed_arrays_are_not_modified():
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


@pytest.mark.parametrize(
    ("agent", "group"),
    [("adversary_0", "adversary"), ("agent_12", "agent"), ("walker3", "walker"), ("north", "north"), ("7", "agent"),
     ("x_1_left", "x_1_left"), ("agent-0", "agent"), ("a robot 3", "a robot")],
)  # fmt: skip
def test_group_of_an_agent_follows_from_its_name(agent, group):
    assert group_of(agent) == group


@pytest.mark.parametrize("where", ["observation", "infos"])
@pytest.mark.parametrize("kinds", [{}, {"several": ["a_1"]}, {"boxes": ["a_0"], "several": ["a_1"]}], ids=str)
def test_masks_begin_observations_and_random_teams_obey_them(where, kinds):
    """The world raises if they do not."""
    worlds = [Masked(where, **kinds) for _ in range(2)]
    env = ParallelCopies("masked", worlds, 3, None, False, masks=where == "infos")
    assert env.spec.masked and env.spec.mixed == ("boxes" in kinds)
    sizes = [sum(world_sizes) for world_sizes in map(worlds[0].sizes, worlds[0].possible_agents)]
    if "boxes" in kinds:
        sizes[0] = 2  # of its box, which has no mask
    assert env.spec.action_sizes == tuple(sizes) and env.spec.observation_sizes == tuple(size + 2 for size in sizes)
    observation = env.reset()
    for _ in range(20):
        for e, world in enumerate(worlds):
            for i, name in enumerate(world.possible_agents):
                mask = np.ones(2) if name in kinds.get("boxes", ()) else world.masks[name]
                assert np.array_equal(observation[e, i, : sizes[i]], mask)
        state, actions = env.state(), env.sample_actions()
        observation = env.step(actions).observation
    other = ParallelCopies("masked", [Masked(where, **kinds) for _ in worlds], 3, None, False, masks=where == "infos")
    other.reset()
    other.load_state(state)
    assert np.array_equal(other.step(actions).observation, observation)


@pytest.mark.parametrize(
    ("where", "mask", "said"),
    [
        ("observation", lambda name, sizes: np.zeros(sum(sizes)), "got an action_mask without any legal choice"),
        ("infos", lambda name, sizes: np.ones(7), "got an action_mask that is not one number per choice"),
        ("nowhere", lambda name, sizes: np.ones(sum(sizes)), "have no action_mask; leave out `env_masks`"),
    ],
)
def test_wrong_masks_are_refused(where, mask, said):
    world = Masked(where)
    world.mask = mask
    with pytest.raises(UserError, match=said):
        ParallelCopies("masked", [world], 3, None, False, masks=where != "observation").reset()
