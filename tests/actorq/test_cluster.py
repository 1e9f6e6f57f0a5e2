"""Runs with actors on a real Ray of two nodes on one machine: faults and kills, wrong addresses and settings."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from shoal import TrainConfig, train
from shoal.actorq import cluster
from shoal.actorq.board import Board
from shoal.actorq.broadcast import numbers_of
from shoal.actorq.player import Play, make_player
from shoal.bench import cluster as bench
from shoal.envs import make_env
from shoal.errors import UserError
from shoal.inference.policy import Exploration
from shoal.shared_memory import SharedMemory
from shoal.training.loop import Training
from tests.actorq.test_system import ACTORS, Meddler, alive
from tests.actorq.test_transport import policy, queues, sent

NODE = {"num_cpus": 2, "object_store_memory": 80_000_000}


@pytest.fixture(scope="module")
def nodes():
    """A Ray of two nodes with two CPUs each; the learner runs on the first."""
    cluster.import_ray()
    from ray.cluster_utils import Cluster

    soon = {"health_check_period_ms": 500, "health_check_timeout_ms": 10_000, "health_check_failure_threshold": 2}
    head = {**NODE, "include_dashboard": False, "_system_config": soon}
    found = Cluster(initialize_head=True, head_node_args=head)
    try:
        found.other = found.add_node(**NODE)
        yield found
    finally:
        found.shutdown()


def run(nodes, folder, meddle=None, after=60, **settings):
    """A small run on the two nodes."""
    meddler = Meddler(meddle, after)
    config = dataclasses.replace(ACTORS, actors=2, cluster=nodes.address, out=str(folder / "run"), **settings)
    result = train(config, observer=meddler)
    return (
        result,
        meddler.training.collector.system,
        json.loads((folder / "run/metrics.jsonl").read_text().splitlines()[-1]),
    )


def ask(system, question):
    """Every actor's answer."""
    return system.ray.get([post.handle.__ray_call__.remote(question) for post in system.posts])


def test_actors_play_on_both_nodes_and_those_that_die_are_replaced(nodes, tmp_path, capfd):
    seen = []

    def meddle(system):
        seen.extend(ask(system, lambda actor: __import__("ray").get_runtime_context().get_node_id()))
        seen.extend(ask(system, lambda actor: __import__("os").environ["OMP_NUM_THREADS"]))
        system.ray.kill(system._quantizer)
        os.kill(ask(system, lambda actor: __import__("os").getpid())[1], signal.SIGKILL)

    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    result, system, line = run(
        nodes, tmp_path, meddle, 4_000, episodes=3_000, actor_precision="int8", actor_engine="native"
    )
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert seen[0] != seen[1] and seen[2:] == ["1", "1"]
    assert result.finished and result.episodes >= 3_000 and result.updates > 5
    assert system.replaced == line["actors/replaced"] == 2 and line["actors/refused"] == 0
    assert line["actors/bytes_per_pull"] == Play("native", "int8", 8, 2).payload(*payload_of(system)).nbytes
    assert line["actors/lag_mean"] >= 0 and line["actors/step_us"] > 0 and line["actors/pull_ms"] > 0
    assert not system.ray.is_initialized() and capfd.readouterr() == ("", "")


def payload_of(system):
    from shoal.inference.policy import Policy

    found = Policy.from_bytes(system._policy.tobytes())
    return found, numbers_of(found)


def test_a_node_is_killed_and_the_run_completes(nodes, tmp_path):
    def kill(system):
        nodes.remove_node(nodes.other, allow_graceful=False)
        while not system.replaced:  # noticed, and an actor started elsewhere
            system.watch(wanted=True)
            time.sleep(0.05)

    result, system, _ = run(nodes, tmp_path, kill, episodes=800)
    nodes.other = nodes.add_node(**NODE)
    assert result.finished and result.episodes >= 800 and system.replaced >= 1


def test_a_world_that_raises_ends_the_run_with_a_sentence(nodes, tmp_path, monkeypatch):
    (tmp_path / "thin_ice.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n\n\n"
        "class Broken(CartPoleEnv):\n    steps = 0\n\n"
        "    def step(self, action):\n"
        "        Broken.steps += 1\n"
        "        if Broken.steps > 150:\n            raise ZeroDivisionError('the ice is thin')\n"
        "        return super().step(action)\n\n\n"
        "gymnasium.register('Broken-v0', Broken, max_episode_steps=5)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        UserError,
        match=r"^The actor failed: gym:thin_ice:Broken-v0 raised ZeroDivisionError in step\(\): the ice is thin",
    ):
        run(nodes, tmp_path, env="gym:thin_ice:Broken-v0", episode_length=None, episodes=10_000)


@pytest.mark.slow
def test_a_local_ray_is_gone_with_its_learner_and_the_run_resumed_on_another(nodes, tmp_path, monkeypatch, request):
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # short: Ray's sockets are in it
    request.addfinalizer(lambda: shutil.rmtree(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    words = (
        "train --actors 1 --cluster local --episodes 2000000 --copies 2 --episode-length 5 --warmup 40 --batch 16 "
        "--hidden 8 8 --update-every 8 --evaluate-episodes 0 --no-tensorboard --threads 1 --checkpoint-every 20 --quiet"
    )
    command = [sys.executable, "-c", "import sys; from shoal.cli import main; sys.exit(main())", *words.split()]
    said = tmp_path / "said"
    with said.open("w") as stream:
        process = subprocess.Popen([*command, "--out", str(tmp_path / "run")], stderr=stream, stdout=stream)
    while len(list((tmp_path / "run").glob("checkpoints/0*"))) < 2:
        time.sleep(0.05)
        assert process.poll() is None
    started = descendants(process.pid)
    assert len(started) > 3
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while (left := [pid for pid in started if alive(pid)]) and not agents(left) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert agents(left)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert said.read_text() == ""
    meddler = Meddler(lambda system: os.kill(os.getpid(), signal.SIGINT), after=0)
    config = TrainConfig(out=str(tmp_path / "run"), actors=1, cluster=nodes.address)
    result = train(config, resume=True, observer=meddler)
    assert result.signal == signal.SIGINT and result.episodes > 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["cluster"] == nodes.address


def agents(pids):
    """Whether these are Ray's agents of a node, which try for a minute to report the end of what started them."""
    try:
        names = [Path(f"/proc/{pid}/comm").read_text() for pid in pids]
    except OSError:  # one of them has just ended
        return False
    return all(name.startswith(("ray::DashboardA", "ray::RuntimeEnv")) for name in names)


def descendants(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [found for child in map(int, children) for found in (child, *descendants(child))]


def test_nodes_without_the_learners_shoal(nodes, tmp_path, monkeypatch):
    config = dataclasses.replace(ACTORS, cluster=nodes.address, out=str(tmp_path / "run"))
    with pytest.raises(UserError, match=r"--actors is 9, but the cluster has 4 CPUs: each actor takes one\."):
        train(dataclasses.replace(config, actors=9))
    monkeypatch.setattr(cluster, "__version__", "9.9")
    with pytest.raises(UserError, match=r"has Shoal 0\..*, but the learner 9\.9; install the same on each node\."):
        train(config)
    monkeypatch.undo()
    monkeypatch.setattr(cluster, "source_digest", lambda: "another")
    with pytest.raises(UserError, match="has another Shoal"):
        train(config)
    monkeypatch.undo()
    (tmp_path / "shoal.py").write_text("raise ModuleNotFoundError('No module named shoal')\n")
    bare = nodes.add_node(**NODE, env_vars={"PYTHONPATH": str(tmp_path)})
    monkeypatch.chdir("/")  # Ray lets workers import from the learner's working directory
    try:
        with pytest.raises(UserError, match=r"The node .* has no Shoal \(No module named shoal\); install"):
            train(config)
    finally:
        nodes.remove_node(bare)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_bench_has_a_row_for_each_transport(nodes, monkeypatch):
    small = {"env": "gym:CartPole-v1", "algorithm": "dqn", "hidden": (8, 8), "pull_every": 20}
    monkeypatch.setattr(bench, "TASKS", {"small": small})
    monkeypatch.setattr(bench, "TRANSPORTS", {"shared memory": None, "ray": nodes.address})
    rows = bench.run(("small",), seconds=2.0)
    assert [row["transport"] for row in rows] == ["shared memory", "ray"]
    assert rows[0]["ratio"] == 1 and rows[0]["bytes_per_pull"] == rows[1]["bytes_per_pull"] > 0
    assert rows[1]["ratio"] == rows[1]["env_steps_per_second"] / rows[0]["env_steps_per_second"] > 0
    assert set(rows[0]) == set(rows[1]) == set(bench.Row.__annotations__)


def test_addresses_where_no_cluster_is(monkeypatch, tmp_path, shoal):
    monkeypatch.setattr(cluster, "ANSWER", 0.5)
    with socket.socket() as silent, socket.socket() as closed:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        closed.bind(("127.0.0.1", 0))
        ports = [silent.getsockname()[1], closed.getsockname()[1]]
        for address in (*(f"127.0.0.1:{port}" for port in ports), "nowhere.invalid:6379"):
            words = f"train --actors 1 --cluster {address} --episodes 9 --warmup 40 --batch 16 --quiet --out".split()
            code, out, err = shoal(*words, tmp_path / "run")
            assert (code, out) == (2, "") and not (tmp_path / "run").exists()
            assert err == (
                f"shoal: --cluster is {address}, but no Ray cluster answers there; `ray start --head` prints its "
                "address.\n"
            )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"actors": 0, "pull_every": 1_000}, "--cluster is for runs with actors, but --actors is 0"),
        ({"cluster": "here"}, "--cluster is 'here', but must be local or HOST:PORT, e.g. 10.0.0.1:6379"),
        ({"cluster": "ray://head:10001"}, "--cluster is 'ray://head:10001', but must be local or HOST:PORT"),
        ({"cluster": "head:70000"}, "--cluster is 'head:70000', but must be"),
        ({"lockstep": True}, "--lockstep and --cluster cannot be used together"),
        ({"error_buffer": 10.0}, "--error-buffer is 10, but with batches of 16 and chunks of 200"),
    ],
)
def test_what_cannot_be(settings, said):
    with pytest.raises(UserError, match=said):
        Training(dataclasses.replace(ACTORS, **{"cluster": "local", **settings}).checked())


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"--cluster needs Ray .*: pip install -c constraints.txt -e '\.\[cluster\]'"):
        Training(dataclasses.replace(ACTORS, cluster="local"))


@pytest.mark.parametrize(
    ("engine", "precision"),
    [("numba", "float32"), ("onnx", "float32"), ("onnx", "int8"), ("native", "int8"), ("torch", "float32")],
)
def test_players_take_versions_that_are_read_only(engine, precision):
    """As Ray hands them out: one copy for all actors of a node."""
    env = make_env("cooperative-navigation", agents=2, copies=2, seed=0)
    observation = env.reset()
    subject = policy(2, (env.spec.observation_size, 8, env.spec.action_size))
    subject = dataclasses.replace(subject, exploration=Exploration())
    play = Play(engine, precision, 8 if precision == "int8" else 32, 2)
    payload = play.payload(subject, numbers_of(subject) * 2)
    actions = []
    for content in (payload, np.frombuffer(payload.tobytes(), np.uint8)):
        player = make_player(subject, play, env.spec, 0)
        player.load(content)
        actions.append(player.act(observation, 0.1))
    assert (actions[0] == actions[1]).all()


def test_chunks_and_counts_travel_as_bytes():
    (actor, _), (_, learner) = queues(), queues()
    actor.start_at(7)
    learner.start_at(7)
    rng = np.random.default_rng(0)
    for _ in range(3):
        (actions, _), *_ = sent(actor, rng)
        content = actor.unload()
        learner.load(np.frombuffer(content.tobytes(), np.uint8))
        assert (learner.next().actions[0] == actions).all()
        learner.done()
    sent(actor, rng)
    content = actor.unload()
    content[200] ^= 1
    learner.load(content)
    assert learner.next() is None and learner.refused == 1
    here, there = (Board(SharedMemory(Board.nbytes(2)), 2) for _ in range(2))
    for _ in range(2):
        there.add(0, "steps", 5)
        there.spend(0, "wait", 0.5)
        here.give(1, there.take(0))
    assert (here.count(1, "steps"), here.seconds(1, "wait")) == (10, 1.0) and there.count(0, "steps") == 0
