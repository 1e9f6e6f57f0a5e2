"""Rule set mpe2, step by step against the mpe2 package itself."""

import numpy as np
import pytest

from shoal.envs import make_env
from tests.envs.test_nearest import by_distance

simple_spread_v3 = pytest.importorskip("mpe2.simple_spread_v3")
simple_tag_v3 = pytest.importorskip("mpe2.simple_tag_v3")

STEPS = 25
DIRECTIONS = np.array([(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)])  # what mpe2's five choices do

pytestmark = pytest.mark.filterwarnings("ignore")  # mpe2 warns of every action that it clips


def pair(agents, prey=0, obstacles=0, continuous=False, seed=0):
    """An mpe2 environment and one copy of ours in the same state."""
    if prey:
        counts = {"num_good": prey, "num_adversaries": agents, "num_obstacles": obstacles}
        theirs = simple_tag_v3.parallel_env(**counts, max_cycles=STEPS, continuous_actions=continuous)
        ours = make_env("predator-prey", agents, prey="learned", prey_count=prey, obstacles=obstacles)
    else:
        theirs = simple_spread_v3.parallel_env(N=agents, max_cycles=STEPS, continuous_actions=continuous)
        ours = make_env("cooperative-navigation", agents)
    theirs.reset(seed=seed)
    copy_state(theirs, ours)
    return theirs, ours


def copy_state(theirs, ours):
    entities = theirs.unwrapped.world.entities
    ours.position[0] = [entity.state.p_pos for entity in entities]
    ours.velocity[0] = [entity.state.p_vel for entity in entities]


def place(theirs, ours, position):
    """Put all bodies at these places (bodies, 2) in both."""
    for agent, where in zip(theirs.unwrapped.world.agents, position, strict=True):
        agent.state.p_pos = np.array(where, np.float64)
    copy_state(theirs, ours)


def steer(wanted):
    """The choices that push hardest along the wanted vectors (bodies, 2)."""
    return np.argmax(DIRECTIONS @ wanted.T, axis=0)


def steps(agents, prey):
    """A whole episode, or the thick of it where mpe2 takes seconds for an episode."""
    return STEPS if agents + prey < 48 else 8


def assert_same_step(theirs, ours, actions, vectors):
    """Step both and compare all that they say."""
    names = theirs.possible_agents
    observations, rewards, _, truncations, _ = theirs.step(dict(zip(names, actions, strict=True)))
    step = ours.step(vectors[None].astype(np.float32))
    for i, name in enumerate(names):
        size = ours.spec.observation_sizes[i]
        np.testing.assert_allclose(step.final_observation[0, i, :size], observations[name], atol=1e-5, rtol=1e-6)
        assert not step.final_observation[0, i, size:].any()
        np.testing.assert_allclose(step.reward[0, i], rewards[name], atol=1e-5, rtol=1e-6)
        assert step.truncated[0] == truncations[name]
    if not step.ended[0]:  # else ours has begun a new episode
        velocity = [agent.state.p_vel for agent in theirs.unwrapped.world.agents]
        np.testing.assert_allclose(ours.velocity[0, : len(names)], velocity, atol=1e-5)
    return step


WORLDS = [
    *[(agents, 0, 0) for agents in (1, 3, 6, 12, 48)],
    *[(3, 1, 2), (3, 2, 0), (6, 2, 2), (1, 3, 1), (12, 4, 4), (48, 16, 16), (48, 1, 2)],
]
worlds = pytest.mark.parametrize(("agents", "prey", "obstacles"), WORLDS)


@worlds
def test_starts_with_the_same_view(agents, prey, obstacles):
    theirs, ours = pair(agents, prey, obstacles)
    observation = ours.observe()
    assert ours.spec.agent_names == tuple(theirs.possible_agents)
    for i, name in enumerate(theirs.possible_agents):
        seen = theirs.unwrapped.observe(name)
        assert ours.spec.observation_sizes[i] == len(seen)
        np.testing.assert_array_equal(observation[0, i, : len(seen)], seen)


@worlds
def test_nearest_entities_first(agents, prey, obstacles):
    """Predators see obstacles, other predators, prey and their velocities; prey likewise, without themselves."""
    theirs, ours = pair(agents, prey, obstacles, seed=4)
    sizes = {"prey": "learned", "prey_count": prey, "obstacles": obstacles} if prey else {}
    ours = make_env(ours.spec.name, agents, entities="distance", **sizes)
    rng = np.random.default_rng(4)
    for _ in range(3):
        for entity in theirs.unwrapped.world.entities:
            entity.state.p_pos, entity.state.p_vel = rng.normal(size=(2, 2))
        theirs.unwrapped.world.entities[-1].state.p_pos = theirs.unwrapped.world.entities[-2].state.p_pos  # a tie
        copy_state(theirs, ours)
        for i, name in enumerate(theirs.possible_agents):
            seen = theirs.unwrapped.observe(name)
            places = 4 + 2 * (obstacles if prey else agents)
            hunters, hunted = agents - (i < agents), prey - (i >= agents)
            fleeing = places + 2 * hunters
            parts = [(4, (places - 4) // 2, None), (places, hunters, None), (fleeing, hunted, fleeing + 2 * hunted)]
            assert (np.sort(seen) == np.sort(ours.observe()[0, i, : len(seen)])).all()
            np.testing.assert_array_equal(
                ours.observe()[0, i, : len(seen)], by_distance(np.asarray(seen, np.float32), parts)
            )


@worlds
def test_random_choices_match_mpe2(agents, prey, obstacles):
    theirs, ours = pair(agents, prey, obstacles, seed=1)
    rng = np.random.default_rng(1)
    for t in range(steps(agents, prey)):
        choices = rng.integers(5, size=agents + prey)
        step = assert_same_step(theirs, ours, choices, np.eye(5)[choices])
        assert step.truncated[0] == (t == STEPS - 1)


def test_landmarks_covered_are_those_that_mpe2_calls_occupied():
    """Agents start about a tenth from a landmark each, some nearer, some farther."""
    found = set()
    for seed in range(5):
        theirs, ours = pair(agents=6, seed=seed)
        place(theirs, ours, ours.position[0, 6:] + np.random.default_rng(seed).normal(0, 0.07, (6, 2)))
        for _ in range(STEPS):
            step = assert_same_step(theirs, ours, [0] * 6, np.eye(5)[[0] * 6])
        world = theirs.unwrapped.world
        assert step.metrics[0, 0] == theirs.unwrapped.scenario.benchmark_data(world.agents[0], world)[-1]
        found.add(step.metrics[0, 0])
    assert len(found) > 1


@worlds
def test_all_agents_drive_to_one_point(agents, prey, obstacles):
    """From one small heap, so that all press on all."""
    theirs, ours = pair(agents, prey, obstacles, seed=2)
    rng = np.random.default_rng(2)
    place(theirs, ours, rng.uniform(-0.2, 0.2, (agents + prey, 2)))
    touched = 0.0
    for _ in range(steps(agents, prey)):
        choices = steer(np.array([0.1, -0.1]) - ours.position[0, : agents + prey])
        step = assert_same_step(theirs, ours, choices, np.eye(5)[choices])
        touched += abs(step.reward).sum()
    assert touched > 0


@pytest.mark.parametrize(("agents", "prey", "obstacles"), [w for w in WORLDS if w[1]])
def test_chasing_predators_match_mpe2(agents, prey, obstacles):
    """Predators run to their nearest prey and the prey into the middle of the predators."""
    theirs, ours = pair(agents, prey, obstacles, seed=3)
    caught = 0.0
    for _ in range(steps(agents, prey)):
        position = ours.position[0]
        predators, hunted = position[:agents], position[agents : agents + prey]
        to_prey = hunted[None] - predators[:, None]  # (N, M, 2)
        nearest = np.argmin((to_prey**2).sum(-1), axis=1)
        wanted = np.concatenate([to_prey[np.arange(agents), nearest], predators.mean(0) - hunted])
        choices = steer(wanted)
        step = assert_same_step(theirs, ours, choices, np.eye(5)[choices])
        caught += step.reward[0, 0]
    assert caught > 0


@pytest.mark.parametrize(("agents", "prey", "obstacles"), [(3, 0, 0), (12, 0, 0), (3, 1, 2), (12, 4, 4)])
def test_soft_actions_also_outside_the_box(agents, prey, obstacles):
    theirs, ours = pair(agents, prey, obstacles, continuous=True, seed=4)
    rng = np.random.default_rng(4)
    place(theirs, ours, rng.uniform(-0.4, 0.4, (agents + prey, 2)))
    for _ in range(STEPS):
        vectors = rng.uniform(-0.5, 1.5, (agents + prey, 5)).astype(np.float32)
        assert_same_step(theirs, ours, vectors, vectors)


def test_exact_contact_is_no_collision():
    theirs, ours = pair(2)
    place(theirs, ours, [(0.5, 0.0), (0.2, 0.0)])
    step = assert_same_step(theirs, ours, [0, 0], np.eye(5)[[0, 0]])
    landmarks = ours.position[0, 2:]
    distance = sum(min(np.linalg.norm(landmark - at) for at in ([0.5, 0.0], [0.2, 0.0])) for landmark in landmarks)
    np.testing.assert_allclose(step.reward, -0.5 * distance, rtol=1e-6)
