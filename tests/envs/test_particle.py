"""What holds for every particle world: episodes, states, threads, refusals."""

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.envs import make_env, particle, physics
from shoal.envs.base import Entity
from shoal.errors import UserError

WORLDS = [
    {"name": "cooperative-navigation"},
    {"name": "cooperative-navigation", "rules": "openai", "landmarks": 2},
    *[{"name": "predator-prey", "prey": prey} for prey in ("scripted", "facmac", "learned", "random")],
    {"name": "predator-prey", "rules": "openai", "prey_count": 2, "obstacles": 0},
]
worlds = pytest.mark.parametrize("world", WORLDS, ids=lambda world: "-".join(str(v) for v in world.values()))


def actions_for(env, seed=0):
    """Soft actions for all agents of all copies, without end."""
    rng = np.random.default_rng(seed)
    while True:
        yield rng.dirichlet(np.ones(5), (env.copies, env.spec.agents)).astype(np.float32)


def play(env, steps, seed=0):
    """All that a number of steps gave, and the state they ended in."""
    played = [env.step(actions) for _, actions in zip(range(steps), actions_for(env, seed), strict=False)]
    return [np.stack(field) for field in zip(*played, strict=True)] + list(env.state().values())


def assert_same(left, right):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)


# ------------------------------------------------------------------------------------------------- description


def test_spec_of_cooperative_navigation():
    env = make_env("cooperative-navigation", 4, copies=2, landmarks=3)
    assert env.spec.agent_names == ("agent_0", "agent_1", "agent_2", "agent_3")
    assert env.spec.observation_sizes == (4 + 2 * 3 + 2 * 3 + 2 * 3,) * 4
    assert env.spec.action_sizes == (5,) * 4
    assert (env.spec.discrete, env.spec.soft_actions, env.spec.fixed_length) == (True, True, True)
    assert (env.spec.team, env.spec.episode_length) == (0, 25)
    assert env.spec.groups == {"agent": [0, 1, 2, 3]}
    assert env.entities == (Entity("agent", 0.15),) * 4 + (Entity("landmark", 0.05),) * 3
    assert env.position.shape == env.velocity.shape == (2, 7, 2)


def test_spec_of_predator_prey():
    env = make_env("predator-prey", 2, prey="learned", prey_count=3, obstacles=1)
    assert env.spec.agent_names == ("adversary_0", "adversary_1", "agent_0", "agent_1", "agent_2")
    assert env.spec.observation_sizes == (20, 20, 18, 18, 18)
    assert env.spec.team == 2
    assert env.spec.groups == {"predator": [0, 1], "prey": [2, 3, 4]}
    kinds = [Entity("predator", 0.075)] * 2 + [Entity("prey", 0.05)] * 3 + [Entity("obstacle", 0.2)]
    assert env.entities == tuple(kinds)
    scripted = make_env("predator-prey", 2, prey_count=3, obstacles=1)
    assert scripted.spec.agent_names == ("adversary_0", "adversary_1")
    assert (scripted.spec.team, scripted.spec.observation_size) == (0, 20)
    assert scripted.entities == env.entities


@pytest.mark.parametrize("name", ["cooperative-navigation", "predator-prey"])
@pytest.mark.parametrize("rules", ["mpe2", "openai"])
@pytest.mark.parametrize("agents", [1, 2, 64])
def test_any_number_of_agents(name, rules, agents):
    env = make_env(name, agents, copies=2, rules=rules)
    observation = env.reset()
    assert observation.shape == (2, agents, env.spec.observation_size)
    results, state = play(env, 30), env.state()
    assert np.isfinite(results[0]).all()
    assert np.isfinite(results[1]).all()
    assert np.isfinite(state["position"]).all()
    assert np.isfinite(state["velocity"]).all()


@worlds
def test_types_of_a_step(world):
    env = make_env(**world, copies=3)
    step = env.step(np.zeros((3, 3 if world.get("prey") != "learned" else 4, 5)))
    n = env.spec.agents
    seen = env.reset().shape
    assert [field.shape for field in step] == [seen, (3, n), (3, n), (3,), (3, n), (3,), seen, (3, 1)]
    assert [str(field.dtype) for field in step] == ["float32", "float32", *["bool"] * 4, "float32", "float32"]


# ------------------------------------------------------------------------------------------------- episodes


@worlds
@pytest.mark.parametrize("stagger", [True, False])
def test_ends_of_episodes(world, stagger):
    env = make_env(**world, copies=5, episode_length=10, stagger=stagger)
    behind = np.array([0, 2, 4, 6, 8]) if stagger else np.zeros(5, int)
    np.testing.assert_array_equal(env.episode_step, behind)
    for t, actions in zip(range(1, 35), actions_for(env), strict=False):
        step = env.step(actions)
        np.testing.assert_array_equal(step.ended, (behind + t) % 10 == 0)
        np.testing.assert_array_equal(step.truncated, step.ended)
        assert not step.terminated.any()
        assert step.alive.all()
        np.testing.assert_array_equal(env.episode_step, (behind + t) % 10)
        np.testing.assert_array_equal(step.observation, env.observe())
        assert not env.velocity[step.ended].any()
    env.reset()
    np.testing.assert_array_equal(env.episode_step, behind)


@worlds
def test_final_observation_is_that_of_the_episode_that_ended(world):
    """A twin whose episodes never end sees what would have been seen."""
    env = make_env(**world, copies=6, episode_length=5)
    twin = make_env(**world, copies=6, episode_length=10_000)
    for _, actions in zip(range(12), actions_for(env), strict=False):
        twin.load_state(env.state())
        step, expected = env.step(actions), twin.step(actions)
        np.testing.assert_array_equal(step.final_observation, expected.observation)
        np.testing.assert_array_equal(step.reward, expected.reward)
        np.testing.assert_array_equal(step.observation[~step.ended], expected.observation[~step.ended])
        assert (step.observation[step.ended] != expected.observation[step.ended]).any(axis=(1, 2)).all()


def test_landmarks_covered_at_the_end_of_an_episode():
    env = make_env("cooperative-navigation", 3, copies=2, landmarks=4, episode_length=1)
    assert env.spec.metrics == ("landmarks_covered",)
    still, landmarks = np.zeros((2, 3, 5), np.float32), [(0.05, 0), (0, -0.0999), (0.5, 0.4), (-0.9, -0.9)]
    for y, covered in ((0.5001, 2), (0.4999, 3)):  # one agent covers two landmarks, the next is near the third
        env.position[:], env.velocity[:] = [(0, 0), (0.5, y), (-0.5, 0.5), *landmarks], 0.0
        env.position[1, 0] = -0.5, 0.0  # nobody is where this agent was
        np.testing.assert_array_equal(env.step(still).metrics, [[covered], [covered - 2]])


def test_each_prey_counts_as_caught_once_per_episode():
    env = make_env("predator-prey", 1, copies=1, prey="learned", prey_count=3, obstacles=0, episode_length=3)
    assert env.spec.metrics == ("prey_caught",)
    still, near, far = np.zeros((1, 4, 5), np.float32), (0.1249, 0), (0.1251, 0)

    def last_step(*predator):
        """The last step of so many, with the predator in these places."""
        for place in predator:
            env.position[0], env.velocity[0] = [place, (0, 0), (0.5, 0), (0, 0.5)], 0.0
            step = env.step(still)
        return step

    assert last_step(near, near, (0.5, 0.1)).metrics.tolist() == [[2.0]]
    assert last_step(far, far, far).metrics.tolist() == [[0.0]]  # what was caught in the episode before does not count
    assert last_step(near, far).metrics.tolist() == [[0.0]]  # not over yet
    env.reset()
    assert last_step(far, far, (0, 0.45)).metrics.tolist() == [[1.0]]


def test_start_positions_cover_the_arena():
    env = make_env("predator-prey", 2, copies=20_000, prey_count=1, obstacles=1)
    assert 0.99 < np.abs(env.position[:, :3]).max() <= 1.0
    assert 0.89 < np.abs(env.position[:, 3:]).max() <= 0.9
    for k, width in enumerate([1.0, 1.0, 1.0, 0.9]):
        quarters, _ = np.histogramdd(env.position[:, k], bins=4, range=[(-width, width)] * 2)
        np.testing.assert_allclose(quarters, 20_000 / 16, rtol=0.15)  # five deviations


# ------------------------------------------------------------------------------------------------- randomness


def test_random_draws_follow_splitmix64():
    """The generator's published first outputs from seed 1234567."""
    random = np.array([1234567], np.uint64)
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [physics.draw(random, 0) for _ in published] == [(z >> 11) / 2**53 for z in published]


@worlds
def test_results_depend_only_on_the_seed(world):
    same = [play(make_env(**world, copies=4, seed=7), 60) for _ in range(2)]
    assert_same(*same)
    other = play(make_env(**world, copies=4, seed=8), 60)
    assert (same[0][0] != other[0]).any()
    positions = make_env(**world, copies=4, seed=7).position
    assert len(np.unique(positions[:, 0, 0])) == 4


@worlds
def test_a_copy_is_independent_of_the_number_of_copies(world):
    few, many = make_env(**world, copies=3, stagger=False), make_env(**world, copies=9, stagger=False)
    for _, actions in zip(range(60), actions_for(many), strict=False):
        left, right = few.step(actions[:3]), many.step(actions)
        np.testing.assert_array_equal(left.observation, right.observation[:3])
        np.testing.assert_array_equal(left.reward, right.reward[:3])


@worlds
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_number_of_threads_changes_nothing(world, threads, monkeypatch):
    serial = play(make_env(**world, copies=13), 30)
    monkeypatch.setattr(particle, "THREADS_FROM", 0)
    monkeypatch.setattr(numba, "get_num_threads", lambda: threads)
    assert_same(serial, play(make_env(**world, copies=13), 30))


# ------------------------------------------------------------------------------------------------- states


@worlds
def test_restored_state_has_the_same_future(world):
    env = make_env(**world, copies=7, episode_length=9)
    play(env, 20)
    saved = env.state()
    future = play(env, 20, seed=1)
    other = make_env(**world, copies=7, episode_length=9, seed=99)
    position = other.position
    other.load_state(saved)
    assert other.position is position
    assert_same(future, play(other, 20, seed=1))
    env.load_state(saved)  # what was saved has not moved on with the world
    assert_same(future, play(env, 20, seed=1))


def test_states_of_another_world_are_refused():
    env = make_env("cooperative-navigation", copies=4)
    before = env.state()
    wrong = [
        make_env("cooperative-navigation", 4, copies=4).state(),
        make_env("cooperative-navigation", copies=5).state(),
        make_env("cooperative-navigation", copies=4, episode_length=100).state(),
        {**before, "random": before["random"].astype(np.int64)},
        {**before, "episode_step": before["episode_step"] - 1},
        {key: value for key, value in before.items() if key != "velocity"},
    ]
    for state in wrong:
        with pytest.raises(UserError, match="does not fit"):
            env.load_state(state)
    assert_same(before.values(), env.state().values())


def test_written_positions_are_seen():
    env = make_env("cooperative-navigation", 2, copies=2, landmarks=1)
    env.position[1] = [(0.1, 0.2), (0.5, 0.5), (-1.0, 1.0)]
    env.velocity[1, 0] = (3.0, 4.0)
    expected = [3.0, 4.0, 0.1, 0.2, -1.1, 0.8, 0.4, 0.3, 0.0, 0.0]
    np.testing.assert_allclose(env.observe()[1, 0], expected, rtol=1e-6)


@worlds
def test_kept_observations_are_never_overwritten(world):
    env = make_env(**world, copies=4, episode_length=3)
    kept, copies = [env.reset()], []
    copies.append(kept[0].copy())
    for t, actions in zip(range(40), actions_for(env), strict=False):
        step = env.step(actions)
        # a view alone must hold it, too; some are dropped so that memory is used again
        for field in (step.observation, step.final_observation[2:]):
            if t % 3:
                kept.append(field)
                copies.append(field.copy())
        del step, field
    assert_same(kept, copies)


def test_released_observation_buffers_are_reused():
    env = make_env("cooperative-navigation", copies=4, stagger=False)
    actions = np.zeros((4, 3, 5))
    addresses = {env.step(actions).observation.ctypes.data for _ in range(20)}
    assert len(addresses) == 1


# ------------------------------------------------------------------------------------------------- contacts


def test_long_episodes_take_no_extra_memory(monkeypatch):
    monkeypatch.setattr(np, "arange", lambda *_: pytest.fail("every step was listed"))
    env = make_env("cooperative-navigation", episode_length=2**40, stagger=False)
    env.load_state(env.state())


@pytest.mark.parametrize("rules", ["mpe2", "openai"])
def test_coinciding_bodies_separate_along_x(rules):
    env = make_env("cooperative-navigation", 2, rules=rules)
    env.position[0, :2] = 0.5
    env.step(np.zeros((1, 2, 5)))
    np.testing.assert_allclose(env.velocity[0, :2], [(3.0, 0.0), (-3.0, 0.0)])  # 100 * 0.3 * 0.1


@worlds
def test_coinciding_entities_stay_finite(world):
    env = make_env(**world, copies=2)
    env.position[:] = 0.25
    results = play(env, 20)
    for values in results:
        assert np.isfinite(values).all()


# ------------------------------------------------------------------------------------------------- actions


@pytest.mark.parametrize("rules", ["mpe2", "openai"])
@pytest.mark.parametrize("prepare", [np.asfortranarray, lambda a: a.astype(np.float64), lambda a: a[::1, :, ::1]])
def test_actions_of_any_memory_layout(rules, prepare):
    left, right = (make_env("predator-prey", copies=3, rules=rules) for _ in range(2))
    actions = next(actions_for(left)).round(2)
    frozen = actions.copy()
    frozen.flags.writeable = False
    np.testing.assert_allclose(left.step(prepare(actions)).observation, right.step(frozen).observation, atol=1e-6)


@pytest.mark.parametrize(
    "actions",
    [
        np.zeros((2, 3, 4)),
        np.zeros((3, 3, 5)),
        np.zeros((3, 5)),
        np.zeros((2, 3, 5), np.int64),
        np.zeros((2, 3, 5), np.float16),
        [[[0.0] * 5] * 3] * 2,
        [[0.0], [0.0, 1.0]],
        None,
    ],
)
def test_wrong_action_types_are_refused(actions):
    with pytest.raises(UserError, match=r"needs a numpy array of float32 or float64 of shape \(2, 3, 5\)"):
        make_env("cooperative-navigation", copies=2).step(actions)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, list])
def test_whole_numbers_are_choices(dtype):
    left, right = (make_env("predator-prey", copies=3) for _ in range(2))
    choices = np.random.default_rng(0).integers(5, size=(3, 3))
    given = choices.tolist() if dtype is list else choices.astype(dtype)
    assert_same(left.step(given), right.step(np.eye(5)[choices]))
    for wrong in (-1, 5):
        choices[2, 1] = wrong
        with pytest.raises(UserError, match=f"'adversary_1' in copy 2 of predator-prey was given choice {wrong}, but"):
            left.step(choices)
    assert_same(left.state().values(), right.state().values())


def test_sampled_actions_are_choices_that_the_seed_determines():
    left, right, other = (make_env("predator-prey", 3, copies=50, seed=seed) for seed in (4, 4, 5))
    drawn = left.sample_actions()
    assert drawn.dtype == np.float32 and drawn.shape == (50, 3, 5)
    assert set(drawn.sum(-1).flat) == {1} and drawn.max() == 1 and drawn.any((0, 1)).all()
    np.testing.assert_array_equal(drawn, right.sample_actions())
    assert not np.array_equal(drawn, other.sample_actions()) and not np.array_equal(drawn, left.sample_actions())
    left.step(drawn)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@settings(max_examples=15, deadline=None)
@given(copy=st.integers(0, 6), agent=st.integers(0, 3), entry=st.integers(0, 4))
def test_non_finite_actions_are_refused_before_the_step(value, dtype, copy, agent, entry):
    env = make_env("predator-prey", 3, prey="learned", copies=7)
    before = env.state()
    actions = np.ones((7, 4, 5), dtype)
    actions[copy, agent, entry] = value
    name = ("adversary_0", "adversary_1", "adversary_2", "agent_0")[agent]
    with pytest.raises(UserError, match=rf"action of {name} in copy {copy} is .*finite"):
        env.step(actions)
    assert_same(before.values(), env.state().values())


def test_huge_but_finite_actions_are_clipped():
    env = make_env("cooperative-navigation", 2)
    env.position[0] = [(-5.0, 0.0), (5.0, 0.0), (0.0, 0.0), (0.0, 0.0)]
    env.step(np.array([[[0, 0, 3e38, 0, 0], [3e38, 3e38, -3e38, 0, 0]]], np.float32))
    np.testing.assert_allclose(env.velocity[0, :2], [(0.5, 0.0), (-0.5, 0.0)])


# ------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"name": "predator-pray"}, "perhaps you meant predator-prey"),
        (
            {"name": "chess"},
            "known are cooperative-navigation, predator-prey, pettingzoo:<module>, gym:<id>, gym:<module>:<class> and",
        ),
        ({"name": None}, "`env` is None, but must be a name, or a class or function"),
        ({"agents": 0}, "`agents` is 0, but must be from 1 to 1024"),
        ({"agents": 1025}, "from 1 to 1024"),
        ({"agents": 2.5}, "`agents` is 2.5, but must be a whole number"),
        ({"agents": "3"}, "`agents` is '3', but must be a whole number"),
        ({"agents": True}, "must be a whole number"),
        ({"copies": 0}, "`copies` is 0, but must be from 1 to 1048576"),
        ({"copies": -3}, "`copies` is -3"),
        ({"copies": 1e3}, "must be a whole number"),
        ({"copies": 10**15}, "from 1 to 1048576"),
        ({"seed": -1}, "`seed` is -1, but must be at least 0"),
        ({"seed": float("nan")}, "must be a whole number"),
        ({"episode_length": 0}, "`episode_length` is 0, but must be from 1 to"),
        ({"episode_length": "25"}, "must be a whole number"),
        ({"episode_length": 10**20}, "`episode_length` is 100000000000000000000, but must be from 1 to 1099511627776"),
        ({"rules": "petting"}, "`rules` 'petting' is not known; choose one of: mpe2, openai"),
        ({"prey": "clever"}, "choose one of: scripted, facmac, learned, random"),
        ({"prey_count": 0}, "`prey_count` is 0"),
        ({"prey_count": 1.0}, "must be a whole number"),
        ({"obstacles": -1}, "`obstacles` is -1"),
        ({"prey_scale": 4}, "`prey_scale` is a setting of facmac prey only"),
        ({"prey": "facmac", "prey_scale": 2}, "`prey_scale` is 2, but must be 1 or 4"),
        ({"landmarks": 3}, "`landmarks` is not a setting of predator-prey"),
        ({"options": {}}, "`options` is not a setting of predator-prey"),
        ({"name": "cooperative-navigation", "landmarks": 0}, "`landmarks` is 0"),
        ({"name": "cooperative-navigation", "prey": "learned"}, "`prey` is not a setting of cooperative-navigation"),
        ({"name": "cooperative-navigation", "prey_count": 1}, "`prey_count` is not a setting"),
        ({"name": "cooperative-navigation", "obstacles": 1}, "`obstacles` is not a setting"),
        ({"name": "cooperative-navigation", "prey_scale": 1}, "`prey_scale` is not a setting"),
        ({"name": "gym:Pendulum-v1", "rules": "openai"}, "`rules` is not a setting of gym:Pendulum-v1"),
        ({"name": "gym:Pendulum-v1", "landmarks": 1}, "`landmarks` is not a setting"),
        ({"name": "gym:Pendulum-v1", "agents": 3}, "`agents` is 3, but gym:Pendulum-v1 has 1"),
    ],
)
def test_wrong_settings_are_refused(wrong, sentence):
    with pytest.raises(UserError) as error:
        make_env(**{"name": "predator-prey", **wrong})
    assert sentence in str(error.value)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["cooperative-navigation", "predator-prey"])
def test_copies_that_do_not_fit_into_memory_are_refused(name, monkeypatch):
    def refuse(shape, places=4):
        raise MemoryError

    monkeypatch.setattr(particle, "_ArrayPool", refuse)
    with pytest.raises(UserError, match="1,000 copies of 8 agents do not fit into memory; use fewer copies"):
        make_env(name, 8, copies=1000)


def test_numpy_scalars_are_accepted_as_settings():
    env = make_env("cooperative-navigation", np.int64(4), copies=np.int32(2))
    assert (env.spec.agents, env.copies) == (4, 2)
