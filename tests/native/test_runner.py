"""Threads change nothing but the time; acting; state; the time of phases; what is compiled into the cache."""

import threading
import weakref

import numpy as np
import pytest
import torch

from shoal.algorithms import LearnConfig, make_team
from shoal.algorithms.native import NativeTeam
from shoal.envs.base import EnvSpec
from shoal.inference.policy import LOG_STD_HIGH, LOG_STD_LOW
from shoal.native import masac, work
from shoal.native import runner as native_runner
from shoal.native.kernels import OPERATIONS
from shoal.training.clock import PhaseClock
from tests.algorithms.test_oracle import ROWS, make_batch, make_spec
from tests.native.test_oracle import Clock

CPU = torch.device("cpu")


def native_team(spec, config, seed=0, threads=1):
    return NativeTeam(spec, config, seed, threads)


def updated(config, threads, spec=None, updates=6, between=lambda team: None):
    """Weights and moments after some updates."""
    spec = spec or make_spec(3, True)
    team, rng = native_team(spec, config, threads=threads), np.random.default_rng(1)
    m = 1 if config.minibatch == "shared" else spec.agents
    for _ in range(updates):
        team.learn(make_batch(rng, spec, m), Clock())
        between(team)
    return team.weights() | team.optimizer_state()


def same(one, other):
    assert one.keys() == other.keys()
    return all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algorithm": "masac", "learn_entropy": True, "minibatch": "independent"},
        {"algorithm": "masac", "variant": "tf2", "others": "current"},
    ],
    ids=str,
)
def test_results_are_bit_identical_for_any_number_of_threads(monkeypatch, settings):
    monkeypatch.setattr("tests.algorithms.test_oracle.ROWS", 256)
    config = LearnConfig(hidden=(20, 12), batch=256, **settings)
    one, *others = (updated(config, threads) for threads in (1, 2, 3, 5))
    assert all(same(one, other) for other in others)


def test_late_or_missing_threads_change_nothing(monkeypatch):
    """Helpers that start in the middle of later updates, or that never start."""
    monkeypatch.setattr("tests.algorithms.test_oracle.ROWS", 256)
    config = LearnConfig(hidden=(20, 12), batch=256)
    wanted = updated(config, 1, updates=30)
    kept = []
    monkeypatch.setattr(native_runner, "lend", lambda call, *arguments: kept.append((call, arguments)))

    def release(team):
        for call, arguments in kept[:2]:
            threading.Thread(target=call, args=arguments).start()
        del kept[:2]

    assert same(wanted, updated(config, 4, updates=30, between=release))
    kept.clear()
    assert same(wanted, updated(config, 3, updates=30))  # nobody ever came


def test_held_piece_is_repeated_by_another_thread():
    """A thread took a piece and was never seen again: the update ends without it, with the same bits."""
    spec, config = make_spec(2, True), LearnConfig(hidden=(12, 8), batch=32)
    wanted = updated(config, 1, spec)
    rng, team = np.random.default_rng(1), native_team(spec, config)
    rounds = team._update
    for update in range(1, 7):
        alone = rounds.tables.pieces[:, work.ALONE] == 1
        held = np.flatnonzero(~alone)[update % 5 :: 3]
        rounds.tables.claims[held] = update  # as the thread that took them would have
        team.learn(make_batch(rng, spec, 1), Clock())
    assert same(wanted, team.weights() | team.optimizer_state())


def test_late_thread_keeps_its_arrays_alive(monkeypatch):
    """Mini-batches in fresh arrays: those of the round that a thread is late in outlive it, the others do not."""
    spec, config = make_spec(2, True), LearnConfig(hidden=(12, 8), batch=32)
    team, rng = native_team(spec, config, threads=2), np.random.default_rng(1)
    began, go_on, main, compiled = threading.Event(), threading.Event(), threading.current_thread(), team.runner.work

    def late(*arguments):
        if threading.current_thread() is not main and not began.is_set():
            began.set()
            assert go_on.wait(60)
        compiled(*arguments)

    team.runner.work = late
    helpers = []

    def lend(call, *arguments):
        helpers.append(threading.Thread(target=call, args=arguments))
        helpers[-1].start()

    monkeypatch.setattr(native_runner, "lend", lend)
    joints = []
    for _ in range(6):
        batch = make_batch(rng, spec, 1)
        joints.append(weakref.ref(batch.joint))
        team.learn(batch, Clock())
        assert began.wait(60)
    assert [joint() is not None for joint in joints[:5]] == [True, False, False, False, False]
    go_on.set()
    for helper in helpers:
        helper.join(60)
    assert joints[0]() is None
    assert len(helpers) == 2  # it was lent once, and came again for the rounds that had begun meanwhile


def test_interrupted_update_does_not_block_the_next():
    """An exception, such as Ctrl-C, may come when a round has been counted and before anybody works on it."""
    spec, config = make_spec(2, True), LearnConfig(hidden=(12, 8), batch=32)
    team, rng = native_team(spec, config), np.random.default_rng(1)
    team.learn(make_batch(rng, spec, 1), Clock())
    team.act(np.zeros((3, 2, spec.observation_size), np.float32))
    for rounds in (team._update, *team._act_rounds.values()):
        rounds.number += 1
    losses = team.learn(make_batch(rng, spec, 1), Clock())
    assert all(np.isfinite(loss).all() for loss in losses.values())
    assert team.act(np.zeros((3, 2, spec.observation_size), np.float32)).shape == (3, 2, spec.action_size)


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
@pytest.mark.parametrize("where", ["joint", "next_joint", "reward", "critics", "actors"])
def test_nan_gives_a_non_finite_loss(algorithm, discrete, where):
    """In a mini-batch or in weights, it must not vanish in a ReLU: that is how divergence is found."""
    spec, config = make_spec(2, discrete), LearnConfig(algorithm=algorithm, hidden=(12, 8), batch=32)
    team, batch = native_team(spec, config), make_batch(np.random.default_rng(0), spec, 1)
    if where in ("critics", "actors"):
        team.algorithm.networks[where].numbers(0)[5] = np.nan
    else:
        getattr(batch, where)[0, 3, 1] = np.nan
    losses = team.learn(batch, Clock())
    assert not all(np.isfinite(loss).all() for loss in losses.values())


@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("unequal", [True, False])
def test_greedy_actions_match_torch(algorithm, discrete, unequal):
    spec, config = make_spec(3, discrete, unequal=unequal), LearnConfig(algorithm=algorithm, hidden=(20, 12))
    team, torch_team = native_team(spec, config), make_team(spec, config, 0, CPU)
    observation = np.random.default_rng(0).normal(size=(130, 3, spec.observation_size)).astype(np.float32)
    wanted = torch_team.act(observation, explore=False)
    np.testing.assert_allclose(team.act(observation, explore=False), wanted, atol=1e-6)
    assert np.array_equal(team.act(observation[:1], explore=False), team.act(observation, explore=False)[:1])


def test_exploration_has_the_policys_distribution():
    """Choices as often as their probabilities say; boxes with the standard deviation of the noise."""
    spec, config = make_spec(1, True, soft=False), LearnConfig(hidden=(8,))
    team, torch_team = native_team(spec, config), make_team(spec, config, 0, CPU)
    observation = np.tile(np.ones(4, np.float32), (40_000, 1, 1))
    wanted = torch_team.actors(torch.ones(1, 1, 4)).softmax(-1)[0, 0].detach().numpy()
    played = team.act(observation)[:, 0]
    assert set(np.unique(played)) == {0.0, 1.0} and np.array_equal(played.sum(1), np.ones(40_000))
    np.testing.assert_allclose(played.mean(0), wanted, atol=0.01)
    boxes = native_team(make_spec(1, False), config)
    noise = boxes.act(0 * observation)[:, 0] - boxes.act(0 * observation, explore=False)[:, 0]
    np.testing.assert_allclose(noise.std(0), 0.1, atol=0.002)
    np.testing.assert_allclose(noise.mean(0), 0, atol=0.002)
    assert not np.array_equal(team.act(observation), team.act(observation))


def test_state_round_trips():
    """A team that is rebuilt from its state, with another number of threads, goes on to the same bits."""
    spec, config = (
        make_spec(3, False, fixed=False),
        LearnConfig(algorithm="masac", learn_entropy=True, hidden=(12,), batch=32),
    )
    team, rng = native_team(spec, config), np.random.default_rng(0)
    batches = [make_batch(rng, spec, 1) for _ in range(4)]
    seen = rng.normal(size=(5, 3, spec.observation_size)).astype(np.float32)
    for batch in batches[:2]:
        team.learn(batch, Clock())
        team.act(seen)
    other = native_team(spec, config, seed=9, threads=2)
    for what in ("weights", "optimizer_state", "random_state"):
        state = {name: array.copy() for name, array in getattr(team, what)().items()}
        getattr(other, "load_" + what)(state)
    for batch in batches[2:]:
        for one in (team, other):
            one.learn(batch, Clock())
        assert np.array_equal(team.act(seen), other.act(seen))
    assert same(team.weights() | team.optimizer_state(), other.weights() | other.optimizer_state())


def test_phases_of_an_update_add_up_to_its_time():
    spec, config = make_spec(2, True), LearnConfig(hidden=(12, 8), batch=32)
    team, clock = native_team(spec, config), PhaseClock()
    clock("mini-batch sampling")
    clock.seconds.clear()
    for _ in range(5):
        team.learn(make_batch(np.random.default_rng(0), spec, 1), clock)
    whole = clock.total()
    phases = {name: spent for name, spent in clock.seconds.items() if spent}
    names = {"next action", "target Q next", "target Q"}
    assert {f"target Q: {part}" for part in names} | {"Q loss", "P loss", "target update"} <= phases.keys()
    assert sum(phases.values()) == pytest.approx(whole) and min(phases.values()) >= 0


def test_dividing_a_phase_keeps_the_sum(monkeypatch):
    now = iter([0.0, 1.0, 5.0, 6.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    clock = PhaseClock()
    clock("a")
    clock.divide({"a": 0.25, "b": 0.75})
    clock("c")
    assert clock.seconds == {"other": 1.0, "a": 1.0 + 1.0, "b": 3.0}


def test_wrong_batches_are_refused():
    spec, config = make_spec(2, True), LearnConfig(hidden=(12,), batch=16)
    team = native_team(spec, config)
    with pytest.raises(ValueError, match="the mini-batch is"):
        team.learn(make_batch(np.random.default_rng(0), spec, 1), Clock())
    team = native_team(spec, LearnConfig(hidden=(12,), batch=ROWS))
    with pytest.raises(TypeError, match="float32"):
        team.learn(make_batch(np.random.default_rng(0), spec, 1, np.float64), Clock())


def test_ends_of_log_deviations_are_the_networks():
    assert masac.ENDS == (LOG_STD_LOW, LOG_STD_HIGH)


@pytest.mark.parametrize("where", ["in it", "before it starts"])
def test_failing_thread_is_reported_once_and_not_used_again(monkeypatch, where):
    main, compiled, tried = threading.current_thread(), work.compiled_work(OPERATIONS), []

    def fails(*arguments):
        if threading.current_thread() is main:
            return compiled(*arguments)
        raise MemoryError("no memory for it")

    def lent(work, *arguments):
        tried.append(work)
        if where == "before it starts":
            raise RuntimeError("no memory for it")
        thread = threading.Thread(target=work, args=arguments)
        thread.start()
        thread.join()

    config = LearnConfig(hidden=(8,), batch=32)
    wanted = updated(config, 1)
    monkeypatch.setattr(native_runner, "compiled_work", lambda operations: fails)
    monkeypatch.setattr(native_runner, "lend", lent)
    with pytest.warns(UserWarning) as told:
        assert same(updated(config, 3), wanted)
    said = "A thread that helps with updates failed (no memory for it): training continues with fewer threads"
    assert len(told) == 1 and said in str(told[0].message) and len(tried) == 2


def test_single_agent_with_one_action():
    box = np.ones((1, 1), np.float32)
    spec = EnvSpec("one", ("agent",), (3,), (1,), False, action_low=-box, action_high=box)
    for algorithm in ("maddpg", "masac"):
        team = native_team(spec, LearnConfig(algorithm=algorithm, hidden=(8,), batch=32))
        losses = team.learn(make_batch(np.random.default_rng(0), spec, 1), Clock())
        assert all(np.isfinite(loss).all() for loss in losses.values())
        assert team.act(np.zeros((4, 1, 3), np.float32)).shape == (4, 1, 1)
