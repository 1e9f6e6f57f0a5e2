"""Whole runs with actors: the same bits in lock-step, every engine, faults and kills, wrong settings."""

import dataclasses
import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from shoal import Callback, TrainConfig, train
from shoal.actorq import actor
from shoal.actorq import training as actorq_training
from shoal.actorq.system import ending, own_processors, pinned_processors
from shoal.actorq.training import chosen_play
from shoal.errors import Diverged, UserError
from shoal.runs.observer import Observer
from shoal.training.loop import Training
from shoal.training.saved_team import load_team

SMALL = TrainConfig(
    episodes=40, copies=2, episode_length=5, warmup=40, batch=16, hidden=(8, 8), update_every=8, evaluate_episodes=0,
    tensorboard=False, threads=1, checkpoint_every=0, log_every=10,
)  # fmt: skip
ACTORS = dataclasses.replace(SMALL, actors=1, pull_every=4)


def weights(run):
    return load_team(Path(run), print)[0].weights()


def same(one, other):
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algorithm": "masac", "env": "gym:Pendulum-v1"},
        {"algorithm": "dqn", "env": "gym:CartPole-v1", "epsilon_decay": 100},
    ],
)
def test_lockstep_torch_actor_is_bit_identical_to_the_synchronous_loop(tmp_path, settings, request):
    if settings:  # the first is enough for the way between processes
        request.getfixturevalue("threads")
    plain = dataclasses.replace(SMALL, out=str(tmp_path / "plain"), update="torch", **settings)
    actors = dataclasses.replace(
        plain, actors=1, actor_engine="torch", lockstep=True, pull_every=1, out=str(tmp_path / "actors")
    )
    first, second = train(plain), train(actors)
    assert first.updates == second.updates > 5 and first.env_steps == second.env_steps
    assert first.return_mean == second.return_mean and first.figures == second.figures
    same(weights(plain.out), weights(actors.out))


def test_lockstep_engine_does_not_depend_on_timing(monkeypatch):
    monkeypatch.setattr(actorq_training, "make_engine", lambda *_, **__: pytest.fail("measured"))
    assert chosen_play(dataclasses.replace(ACTORS, lockstep=True), None).engine == "onnx"


@pytest.mark.parametrize(
    ("engine", "precision", "bits", "corrected"),
    [("numba", "float32", 4, True), ("onnx", "float32", 16, False), ("onnx", "float16", None, False),
     ("onnx", "int8", None, False), ("native", "int8", None, True), ("auto", "int8", 8, False),
     ("torch", "float32", 2, False)],
)  # fmt: skip
def test_every_engine_plays(tmp_path, both, engine, precision, bits, corrected):
    config = dataclasses.replace(
        ACTORS, actor_engine=engine, actor_precision=precision, broadcast_bits=bits, actor_bias_correction=corrected,
        out=str(tmp_path / "run"),
    )  # fmt: skip
    result = train(config)
    assert result.finished and result.episodes >= 40 and result.updates > 5
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["actors/bytes_per_pull"] > 0 and line["actors/refused"] == 0 and line["actors/lag_mean"] >= 0


def test_no_transition_is_sampled_more_often_than_allowed(tmp_path, threads):
    config = dataclasses.replace(ACTORS, max_times_sampled=1, episodes=400, out=str(tmp_path / "run"))
    meddler = Meddler(None)
    result = train(config, observer=meddler)
    learner = meddler.training.learner
    assert result.finished and learner.sampler.times.max() == 1
    assert 0 < learner.updates * config.batch <= result.env_steps


class Meddler(Observer):
    """Does something to the run's processes, once, after some samples."""

    def __init__(self, meddle, after=60):
        self.meddle, self.after, self.training, self.noted = meddle, after, None, []

    def note(self, sentence):
        self.noted.append(sentence)

    def advance(self, training):
        self.training = training
        if self.meddle is not None and training.samples >= self.after:
            self.meddle(training.collector.system)
            self.meddle = None


def test_killed_or_suspended_processes_are_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.actorq.heartbeat.SILENT", 1.5)
    signals = [signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP]  # for the quantizer and both actors

    def meddle(system):
        while not all(system.board.counts["ticks"][post] for post in range(3)):  # before, it may be silent for long
            time.sleep(0.01)
        for post, number in zip(system.posts, signals, strict=True):
            os.kill(post.child.process.pid, number)
        while any(post.started < 2 for post in system.posts):
            system.watch()
            time.sleep(0.02)

    meddler = Meddler(meddle)
    result = train(dataclasses.replace(ACTORS, actors=2, episodes=1_000, out=str(tmp_path / "run")), observer=meddler)
    system = meddler.training.collector.system
    assert result.finished and result.episodes >= 1_000
    assert system.replaced == sum(one.started - 1 for one in system.posts) >= 3
    assert all(post.child is None for post in system.posts)
    assert meddler.noted[-1].startswith("The learner waited ")


def test_exception_in_a_world_ends_the_run(tmp_path, monkeypatch):
    (tmp_path / "broken_world.py").write_text(
        "import gymnasium\nimport numpy as np\n\n\n"
        "class Broken(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(-1, 1, (2,))\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    steps = 0\n\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return np.zeros(2, np.float32), {}\n\n"
        "    def step(self, action):\n"
        "        Broken.steps += 1\n"
        "        if Broken.steps > 50:\n"
        "            raise ZeroDivisionError('the ice is thin')\n"
        "        return np.zeros(2, np.float32), 0.0, False, False, {}\n\n\n"
        "gymnasium.register('Broken-v0', 'broken_world:Broken', max_episode_steps=5)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    config = dataclasses.replace(ACTORS, env="gym:broken_world:Broken-v0", episode_length=None, episodes=1_000)
    with pytest.raises(
        UserError, match=r"raised ZeroDivisionError in step\(\): the ice is thin \(broken_world\.py:16 in"
    ):
        train(dataclasses.replace(config, out="run"))


def test_killed_learner_leaves_no_process_and_resumes(tmp_path):
    words = (
        "train --actors 2 --episodes 100000 --copies 2 --episode-length 5 --warmup 40 --batch 16 --hidden 8 8 "
        "--update-every 8 --evaluate-episodes 0 --no-tensorboard --threads 1 --checkpoint-every 20 --quiet"
    )
    command = [sys.executable, "-c", "import sys; from shoal.cli import main; sys.exit(main())", *words.split()]
    process = subprocess.Popen([*command, "--out", str(tmp_path / "run")], stderr=subprocess.DEVNULL)
    while len(list((tmp_path / "run").glob("checkpoints/0*"))) < 2:
        time.sleep(0.05)
        assert process.poll() is None
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert len(children) == 3
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while any(alive(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in children)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["actors"] == 2
    meddler = Meddler(lambda system: os.kill(os.getpid(), signal.SIGINT), after=0)
    done = int(sorted((tmp_path / "run").glob("checkpoints/0*"))[-1].name)
    result = train(TrainConfig(out=str(tmp_path / "run")), resume=True, observer=meddler)
    assert result.signal == signal.SIGINT and result.episodes >= done


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"actors": 0}, "`pull_every` is for runs with actors, but `actors` is 0"),
        ({"pull_every": 0}, "`pull_every` is 0"),
        ({"samples_per_insert": 0.0}, "`samples_per_insert` is 0"),
        ({"samples_per_insert": float("nan")}, "`samples_per_insert` is nan"),
        ({"samples_per_insert": 4.0}, "`samples_per_insert` is 4, but `batch=16` per `update_every=8` makes 2"),
        ({"update_every": 2, "samples_per_insert": 10.0}, "10, but `batch=16` per `update_every=2` makes 8"),
        ({"update_every": None, "samples_per_insert": 10.0, "lockstep": True}, "divided by a whole number, e.g. 8"),
        ({"actor_engine": "torch", "actor_precision": "int8"}, "`actor_engine=torch` computes in float32, not int8"),
        ({"actor_precision": "int8", "broadcast_bits": 4}, "`broadcast_bits` is 4, but int8 actors take"),
        ({"broadcast_bits": 3}, "`broadcast_bits` is 3, but must be 32, 16, 8, 6, 4 or 2"),
        ({"actor_bias_correction": True}, "`actor_bias_correction` is for int8 actors or `broadcast_bits` of 8"),
        ({"qat_bits": 4}, "`actors` and `qat_bits` cannot be used together"),
        ({"implementation": "reference", "copies": 1}, "`actors` needs `implementation=engine`"),
        ({"max_times_sampled": 1, "samples_per_insert": 2.0}, "`max_times_sampled=1` lets no row be drawn that often"),
        ({"max_times_sampled": 1, "capacity": 40, "batch": 64}, "`max_times_sampled=1` allows only 40 draws"),
        ({"warmup": 50, "capacity": 40}, "`warmup` is 50, but the replay ring of this run holds at most 40"),
        ({"warmup": 10**5}, "holds at most .*: learning would never begin; set `warmup`, `episodes` or `capacity`"),
    ],
)
def test_unsupported_settings_are_refused(settings, said):
    with pytest.raises(UserError, match=said):
        Training(dataclasses.replace(ACTORS, **settings).checked())


def test_samples_per_insert_sets_the_pace():
    """No second pace stands beside it in config.json, and any ratio survives being read again."""
    config = dataclasses.replace(ACTORS, update_every=None, samples_per_insert=10.0).checked()
    assert config.update_every is None and config.pace == 10.0 and config.samples_per_update == 2
    assert TrainConfig(**dataclasses.asdict(config)).checked() == config


FROZEN_WORLD = """
import ctypes, gymnasium, numpy as np


class Frozen(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps > 3:  # after some steps, but before the first chunk is full
            ctypes.PyDLL(None).sleep(5)  # does not release the interpreter
        return np.zeros(2, np.float32), 0.0, False, False, {}


gymnasium.register("Frozen-v0", "frozen_world:Frozen", max_episode_steps=5)
"""


@pytest.mark.slow
def test_world_that_blocks_the_interpreter_ends_the_run(tmp_path, monkeypatch):
    (tmp_path / "frozen_world.py").write_text(FROZEN_WORLD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("shoal.actorq.heartbeat.SILENT", 0.6)
    monkeypatch.setattr("shoal.actorq.system.DEATHS", 2)
    config = dataclasses.replace(ACTORS, env="gym:frozen_world:Frozen-v0", episode_length=None, copies=1, pull_every=10)
    said = r"^Actor 0 failed 2 times in a row before it had sent anything: it sent no heartbeat .* `actors=0`\.$"
    with pytest.raises(UserError, match=said):
        train(dataclasses.replace(config, out=str(tmp_path / "run")))


def test_actor_that_never_sends_ends_the_run(monkeypatch):
    system = Training(ACTORS).collector.system
    process = SimpleNamespace(poll=lambda: -signal.SIGSEGV)
    monkeypatch.setattr(system, "_fill", lambda post: None)
    post = system.posts[1]
    post.child = SimpleNamespace(process=process, kill=lambda: None)
    for sent in (0, 0, 1, 0, 0):  # a chunk in between: it is given another chance
        system.board.counts["steps"][1] += 1
        system.queues[0]._head[0] = post.done + sent
        system._replace(post)
        post.done = system._done(post)
    with pytest.raises(UserError, match=r"^Actor 0 failed 3 times in a row before it had sent anything: it ended by"):
        system._replace(post)
    assert system.replaced == 5


def test_heartbeats_start_after_imports(monkeypatch):
    system, order = Training(ACTORS).collector.system, []
    for name in ("build_env", "make_player"):
        real = getattr(actor, name)
        monkeypatch.setattr(actor, name, lambda *a, name=name, real=real: (order.append(name), real(*a))[1])
    monkeypatch.setattr(actor, "live", lambda board, index, parent: order.append("live"))
    monkeypatch.setattr(actor.Actor, "play", lambda self: order.append("play"))
    memory = {**system._memory(), "chunks": system.queues[0].memory}
    spec = system.spec_of(system.posts[1], memory) | {"index": 1, "processor": None}
    for name in memory:
        spec[name]["descriptor"] = os.dup(spec[name]["descriptor"])
    actor.run(spec, None)
    assert order == ["build_env", "make_player", "live", "play"]


def test_exit_reason_of_a_process_is_reported():
    assert ending(-signal.SIGKILL).startswith("was killed, perhaps because memory ran out")
    assert (ending(-signal.SIGSEGV), ending(3)) == ("ended by signal 11", "ended with exit code 3")


def test_actors_avoid_processors_of_pinned_programs(monkeypatch):
    processor = max(os.sched_getaffinity(0))
    other = subprocess.Popen(["sleep", "60"])
    try:
        os.sched_setaffinity(other.pid, {processor})
        while not Path(f"/proc/{other.pid}/cmdline").read_bytes():  # it is only now becoming `sleep`
            time.sleep(0.01)
        assert processor in pinned_processors()
    finally:
        other.kill()
        other.wait()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    monkeypatch.setattr("shoal.actorq.system.pinned_processors", lambda: {1, 9})
    assert own_processors(3) == [2, 3, 4] and own_processors(4) == [2, 3, 4, 5] and own_processors(5) == [None] * 5


def test_every_actor_gets_its_share_of_the_ring(tmp_path, threads):
    """The limiter lets in one chunk at a time; it is not always the first actor's."""
    config = dataclasses.replace(
        ACTORS, actors=2, episodes=80, update_every=1, batch=64, pull_every=2, update="torch",
        out=str(tmp_path / "run"),
    )  # fmt: skip  # a slow learner: a native one is done before the second process has started

    def wait(system):
        while not all(system.board.counts["ticks"][post] for post in (1, 2)):  # both actors play
            time.sleep(0.01)

    meddler = Meddler(wait, after=0)
    train(config, observer=meddler)
    added = meddler.training.ring.added
    assert added.min() > added.max() / 4


def test_run_stopped_before_the_first_chunk_resumes(tmp_path):
    """And whoever trains gets all descriptors back."""
    config = dataclasses.replace(ACTORS, out=str(tmp_path / "run"))

    class Stop(Callback):
        def on_begin(self, run):
            os.kill(os.getpid(), signal.SIGINT)

    def descriptors():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    result = train(config, callbacks=[Stop()])
    assert result.signal == signal.SIGINT and result.env_steps == 0
    before = descriptors()
    result = train(TrainConfig(out=config.out), resume=True)
    assert result.finished and result.updates > 5
    assert descriptors() == before


def test_repeated_resumes(tmp_path, threads):
    """Each time the actors begin new episodes: the rows where the old ones were left stay in the ring."""
    config = dataclasses.replace(ACTORS, actors=2, keep_replay=True, out=str(tmp_path / "run"))
    train(config)
    for episodes in (80, 120):
        meddler = Meddler(None)
        result = train(TrainConfig(out=config.out, episodes=episodes), resume=True, observer=meddler)
        assert result.finished and result.episodes >= episodes
        ring = meddler.training.ring
        assert np.all(ring.added - ring.oldest >= 0.9 * np.minimum(ring.added, ring.capacity_per_copy))


def test_overwritten_unused_samples_do_not_deadlock(tmp_path, threads):
    """A small ring forgets transitions before they are drawn as often as the ratio asks for."""
    config = dataclasses.replace(
        ACTORS, max_times_sampled=2, samples_per_insert=2.0, capacity=60, episodes=400, out=str(tmp_path / "run")
    )
    assert train(config).finished


def test_actors_that_do_not_fit_into_memory_are_refused(monkeypatch):
    monkeypatch.setattr("shoal.actorq.system.OTHER_PROCESS_BYTES", 10**12)
    with pytest.raises(UserError, match=r"Running 2 actor processes needs .* at most 0 fit"):
        Training(dataclasses.replace(ACTORS, actors=2))


def test_actors_import_nothing_from_the_working_directory(tmp_path, monkeypatch):
    worlds, elsewhere = tmp_path / "worlds", tmp_path / "elsewhere"
    worlds.mkdir()
    elsewhere.mkdir()
    (worlds / "own_world.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n\n"
        "gymnasium.register('Own-v0', CartPoleEnv, max_episode_steps=5)\n"
    )
    (elsewhere / "queue.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(elsewhere)
    monkeypatch.syspath_prepend(worlds)
    config = dataclasses.replace(ACTORS, env="gym:own_world:Own-v0", episode_length=None, out=str(tmp_path / "run"))
    assert train(config).finished


def test_nan_weights_are_not_published():
    training = Training(ACTORS)
    poisoned = {name: np.full_like(weights, np.nan) for name, weights in training.team.weights().items()}
    training.team.load_weights(poisoned)
    with pytest.raises(Diverged, match="weights are not numbers"):
        training.learner.publish()
