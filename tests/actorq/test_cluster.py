"""Runs with actors on a real Ray of two nodes on one machine: faults and kills, wrong addresses and settings."""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from shoal import TrainConfig, __version__, train
from shoal.actorq import cluster, connect, heartbeat, remote
from shoal.actorq.board import Board
from shoal.actorq.broadcast import numbers_of
from shoal.actorq.player import Play, make_player
from shoal.actorq.remote import RemoteActor
from shoal.bench import cluster as bench
from shoal.envs import make_env
from shoal.errors import ActorsLost, UserError
from shoal.inference.policy import Exploration
from shoal.training.loop import Training
from tests.actorq.conftest import play_in_threads
from tests.actorq.test_system import ACTORS, Meddler, alive
from tests.actorq.test_transport import policy, queues, sent

NODE = {"num_cpus": 2, "object_store_memory": 80_000_000}
INT8 = {"actor_precision": "int8", "actor_engine": "native"}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What actors compile is in the cache: on a fresh machine each of them would compile all of it, side by side."""
    with pytest.MonkeyPatch.context() as patch:
        play_in_threads(patch)
        out = tmp_path_factory.mktemp("compiled") / "run"
        train(dataclasses.replace(ACTORS, **INT8, out=str(out)), pictures=False)


@pytest.fixture(scope="module")
def nodes(compiled):
    """A Ray of two nodes with two CPUs each; the learner runs on the first. The other is killed by the first test."""
    connect.import_ray()
    from ray.cluster_utils import Cluster

    soon = {"health_check_period_ms": 500, "health_check_timeout_ms": 10_000, "health_check_failure_threshold": 2}
    head = {**NODE, "include_dashboard": False, "_system_config": soon}
    found = Cluster(initialize_head=True, head_node_args=head)
    try:
        found.other = found.add_node(**NODE)
        yield found
    finally:
        found.shutdown()


class Script(Meddler):
    """Does one thing after the other while a run goes on, which ends after the last; waits at each `yield`."""

    def __init__(self, script):
        super().__init__(None)
        self.script, self.steps = script, None

    def advance(self, training):
        self.training = training
        if training.updates and self.script:
            self.steps = self.steps or self.script(training.collector.system)
            if next(self.steps, None) == "end":
                object.__setattr__(training.config, "episodes", training.episodes)


def run(nodes, folder, script=None, **settings):
    """A small run on the two nodes."""
    meddler = Script(script)
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


def test_actors_play_on_both_nodes_and_dead_ones_are_replaced(nodes, tmp_path, capfd):
    """The quantizer is killed, an actor, and the other actor with its whole node: the run completes."""
    seen = []

    def script(system):
        where = ask(system, lambda actor: __import__("ray").get_runtime_context().get_node_id())
        seen.extend([*where, *ask(system, lambda actor: __import__("os").environ["OMP_NUM_THREADS"])])
        elsewhere = where.index(next(node for node in where if node != nodes.head_node.node_id))
        system.ray.kill(system.quantizer.handle)
        os.kill(ask(system, lambda actor: __import__("os").getpid())[1 - elsewhere], signal.SIGKILL)
        while system.replaced < 2:
            yield
        assert capfd.readouterr() == ("", "")
        nodes.remove_node(nodes.other, allow_graceful=False)  # of which Ray prints something
        while system.replaced < 3:
            yield
        sent = [queue.sent for queue in system.queues]
        while any(queue.sent < before + 3 for queue, before in zip(system.queues, sent, strict=True)):
            yield
        while not all(system.board.counts["pulls"][1 + post.actor] for post in system.posts):  # the new ones, too
            yield
        yield "end"

    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    result, system, line = run(nodes, tmp_path, script, episodes=10**6, capacity=1_000, **INT8)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert seen[0] != seen[1] and seen[2:] == ["1", "1"]
    assert result.finished and result.updates > 5
    assert system.replaced == line["actors/replaced"] > 2 and line["actors/refused"] == 0
    assert line["actors/bytes_per_pull"] == Play("native", "int8", 8, 2).payload(*payload_of(system)).nbytes
    assert line["actors/lag_mean"] >= 0 and line["actors/step_us"] > 0 and line["actors/pull_ms"] > 0
    assert not system.ray.is_initialized() and capfd.readouterr().out == ""


def payload_of(system):
    from shoal.inference.policy import Policy

    found = Policy.from_bytes(system.template.tobytes())
    return found, numbers_of(found)


class Handle:
    """An actor of a Ray cluster that answers or not."""

    def __init__(self):
        self.asked = []
        self.alive = self.play = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self.ask), remote=self.ask)

    def ask(self, *_):
        self.asked.append(object())
        return self.asked[-1]


class FakeRay:
    """As much of Ray as watching over its actors takes; what is in `answered` is ready."""

    exceptions = SimpleNamespace(RayTaskError=KeyError, RayError=LookupError)

    def __init__(self):
        self.answered, self.killed = set(), []

    def wait(self, calls, num_returns=1, timeout=None):
        return [call for call in calls if call in self.answered], []

    def kill(self, handle):
        self.killed.append(handle)


def test_suspended_actor_or_quantizer_is_replaced(monkeypatch):
    monkeypatch.setattr(cluster, "SILENT_ON_RAY", 5.0)
    monkeypatch.setattr(heartbeat, "SILENT_ON_RAY", 5.0)
    now = [0.0]
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: now[0]))
    system = Training(dataclasses.replace(ACTORS, actors=2, cluster="local")).collector.system
    system.ray = ray = FakeRay()
    system._template, system._remote = None, lambda *_, **__: SimpleNamespace(remote=lambda *_: Handle())
    monkeypatch.setattr(cluster, "check_running", lambda ray: None)
    here = SimpleNamespace(get_node_id=lambda: "here")
    ray.get_runtime_context = lambda: here
    ray.util = SimpleNamespace(
        scheduling_strategies=SimpleNamespace(NodeAffinitySchedulingStrategy=lambda *_, **__: None)
    )
    for post in (system.quantizer, *system.posts):
        system._fill(post)

    def pass_seconds(seconds, *answering):
        for _ in range(seconds):
            now[0] += 1.0
            for handle in answering:
                ray.answered.update(handle.asked)
            system.watch(wanted=False)

    stopped, fine, quantizer = system.posts[0].handle, system.posts[1].handle, system.quantizer.handle
    pass_seconds(10, fine, quantizer)  # the first waits for a CPU: it has not answered yet
    pass_seconds(5, stopped, fine, quantizer)
    assert not ray.killed
    now[0] += 1_000  # the learner itself was stopped
    pass_seconds(2, fine, quantizer)
    assert not ray.killed
    pass_seconds(2, fine, quantizer)
    assert ray.killed == [stopped] and system.replaced == 1 and system.posts[0].handle is not stopped
    pass_seconds(5, *(post.handle for post in system.posts))
    assert ray.killed == [stopped, quantizer] and system.replaced == 2 and system.quantizer.handle is not quantizer
    with pytest.raises(UserError, match=r"Actor 0 failed 3 times in a row .*: it sent no heartbeat for 5 seconds\.$"):
        for _ in range(2):
            pass_seconds(1, *(post.handle for post in system.posts), system.quantizer.handle)
            pass_seconds(5, *(post.handle for post in system.posts[1:]), system.quantizer.handle)


@pytest.mark.slow
def test_suspended_actor_is_replaced(nodes, tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "SILENT_ON_RAY", 4.0)

    def stop(system):
        os.kill(ask(system, lambda actor: __import__("os").getpid())[0], signal.SIGSTOP)
        while system.replaced < 1:
            yield
        sent = system.queues[0].sent
        while system.queues[0].sent < sent + 5:
            yield
        yield "end"

    result, system, _ = run(nodes, tmp_path, stop, episodes=10**6, capacity=1_000)
    assert result.finished and system.replaced == 1


THIN_ICE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class Broken(CartPoleEnv):
    steps = 0

    def step(self, action):
        Broken.steps += 1
        if Broken.steps > 150:
            raise ZeroDivisionError('the ice is thin')
        return super().step(action)


gymnasium.register('Broken-v0', Broken, max_episode_steps=5)
"""
BROKEN = r"^The actor failed: gym:thin_ice:Broken-v0 raised ZeroDivisionError in step\(\): the ice is thin"


@pytest.fixture
def thin_ice(tmp_path, monkeypatch):
    """Settings of a world that raises."""
    (tmp_path / "thin_ice.py").write_text(THIN_ICE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "thin_ice", raising=False)
    return {"env": "gym:thin_ice:Broken-v0", "episode_length": None, "episodes": 10_000}


def test_exception_in_a_world_is_one_sentence(thin_ice, monkeypatch):
    """What crosses the cluster is plain text; no Ray is started."""
    system = Training(dataclasses.replace(ACTORS, cluster="local", **thin_ice)).collector.system
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda payload: payload))
    spec = system.actor_spec(system.posts[0]) | {"sent": 0, "digest": None}
    actor = RemoteActor(json.dumps(spec), system.template)
    payload = system.play.payload(*payload_of(system))
    with pytest.raises(RuntimeError) as raised:
        for number in range(9):
            message = actor.play([payload], 1 + number, 0, 0.1)
            assert message.nbytes == system.layout.nbytes + Board(1).take(0).nbytes
    fault = cluster.fault("actor", SimpleNamespace(cause=raised.value))
    assert isinstance(fault, UserError) and re.match(BROKEN, str(fault))


@pytest.mark.slow
def test_exception_in_a_world_ends_the_run(nodes, tmp_path, thin_ice):
    with pytest.raises(UserError, match=BROKEN):
        run(nodes, tmp_path, **thin_ice)


@pytest.mark.slow
def test_local_ray_ends_with_its_learner_and_the_run_resumes(nodes, tmp_path, monkeypatch, request):
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
    assert len(places := listening([process.pid, *started])) > 3 and set(places) <= {"127.0.0.1", "::ffff:127.0.0.1"}
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


def listening(pids):
    """Addresses on which these processes listen."""
    links = [path for pid in pids for path in Path(f"/proc/{pid}/fd").iterdir()]
    sockets = {os.readlink(path) for path in links if path.is_symlink()}
    found = []
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in sockets:
                raw = bytes.fromhex(local.split(":")[0])
                words = b"".join(raw[k : k + 4][::-1] for k in range(0, len(raw), 4))
                found.append(socket.inet_ntop(family, words))
    return found


def descendants(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [found for child in map(int, children) for found in (child, *descendants(child))]


def test_nodes_with_another_shoal_are_refused(nodes, tmp_path, monkeypatch):
    (tmp_path / "shoal.py").write_text("raise ModuleNotFoundError('No module named shoal')\n")
    bare = nodes.add_node(**NODE, env_vars={"PYTHONPATH": str(tmp_path)})
    monkeypatch.chdir("/")  # Ray lets workers import from the learner's working directory
    ray = connect.import_ray()
    try:
        connect.connect(ray, nodes.address, {})
        with pytest.raises(UserError, match=r"`actors` is 9, but the cluster has [46] CPUs: each actor takes one\."):
            connect.check_cpus(ray, 9)
        with pytest.raises(UserError, match=r"The node .* has no Shoal \(No module named shoal\); install"):
            connect.check_nodes(ray)
        nodes.remove_node(bare)
        monkeypatch.setattr(connect, "__version__", "9.9")
        with pytest.raises(UserError, match=r"has Shoal 0\..*, but the learner 9\.9; install the same on each node\."):
            connect.check_nodes(ray)
    finally:
        ray.shutdown()


def test_different_source_on_a_node_is_detected(monkeypatch):
    connect.check_same("The node", __version__, remote.source_digest())
    monkeypatch.setattr(connect, "source_digest", lambda: "another")
    with pytest.raises(UserError, match=r"The node has another Shoal .* \(its source differs\), but the learner"):
        connect.check_same("The node", __version__, remote.source_digest())


def test_cluster_is_checked_before_the_start(monkeypatch, tmp_path):
    checked = []
    monkeypatch.setattr(cluster, "connect", lambda *_: checked.append("connect"))
    monkeypatch.setattr(cluster, "check_nodes", lambda ray: checked.append("nodes"))

    def few(ray, actors):
        raise UserError(f"too many: {actors}")

    monkeypatch.setattr(cluster, "check_cpus", few)
    config = dataclasses.replace(ACTORS, actors=9, cluster="127.0.0.1:1", out=str(tmp_path / "run"))
    with pytest.raises(UserError, match="too many: 9"):
        train(config)
    assert checked == ["connect", "nodes"] and not (tmp_path / "run").exists()


def test_death_of_a_local_ray_ends_the_run():
    """Ray itself would end the learner's process a while later."""
    dead = [("log_monitor", None)]
    node = SimpleNamespace(dead_processes=lambda: dead)
    ray = SimpleNamespace(_private=SimpleNamespace(worker=SimpleNamespace(_global_node=node)))
    connect.check_running(ray)
    dead.append(("raylet", None))
    with pytest.raises(UserError, match=r"Ray's raylet on this machine has died, .*; `resume` continues from the last"):
        connect.check_running(ray)
    with (
        pytest.raises(
            ActorsLost, match=r"^Ray has gone \(Connection reset by peer\); `resume` continues from the last"
        ),
        connect.told_if_gone(),
    ):
        raise OSError("Connection reset by peer")


@pytest.mark.parametrize(("address", "refused"), [("127.0.0.1", False), ("192.0.2.2", True)])
def test_local_ray_listens_on_localhost_only(address, refused):
    """Whether it really does is checked where one is started."""
    constants = SimpleNamespace(ENABLE_RAY_CLUSTER=True)
    during = []
    ray = SimpleNamespace(
        _private=SimpleNamespace(ray_constants=constants), __version__="9", util=SimpleNamespace(
            get_node_ip_address=lambda: address
        ), init=lambda **settings: during.append(constants.ENABLE_RAY_CLUSTER),
    )  # fmt: skip
    with pytest.raises(UserError, match="would listen on all network") if refused else contextlib.nullcontext():
        connect.connect(ray, "local", {})
    assert during == [False] and constants.ENABLE_RAY_CLUSTER


@pytest.mark.slow
def test_the_bench_has_a_row_for_each_transport(nodes, monkeypatch):
    small = {"env": "gym:CartPole-v1", "algorithm": "dqn", "hidden": (8, 8), "pull_every": 20}
    monkeypatch.setattr(bench, "TASKS", {"small": small})
    monkeypatch.setattr(bench, "TRANSPORTS", {"shared memory": None, "ray": nodes.address})
    rows = bench.run("small", seconds=2.0)
    assert [row["transport"] for row in rows] == ["shared memory", "ray"]
    assert rows[0]["ratio"] == 1 and rows[0]["bytes_per_pull"] == rows[1]["bytes_per_pull"] > 0
    assert rows[1]["ratio"] == rows[1]["env_steps_per_second"] / rows[0]["env_steps_per_second"] > 0
    assert set(rows[0]) == set(rows[1]) == {*bench.NAMES, "ratio"}


def test_addresses_without_a_cluster_are_refused(monkeypatch, tmp_path, shoal):
    monkeypatch.setattr(connect, "ANSWER", 0.2)
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
        ({"actors": 0, "pull_every": 1_000}, "`cluster` is for runs with actors, but `actors` is 0"),
        ({"cluster": "here"}, "`cluster` is 'here', but must be local or HOST:PORT, e.g. 10.0.0.1:6379"),
        ({"cluster": "ray://head:10001"}, "`cluster` is 'ray://head:10001', but must be local or HOST:PORT"),
        ({"cluster": "head:70000"}, "`cluster` is 'head:70000', but must be"),
        ({"lockstep": True}, "`lockstep` and `cluster` cannot be used together"),
        ({"error_buffer": 10.0}, "`error_buffer` is 10, but with batches of 16 and chunks of 200"),
    ],
)
def test_unsupported_settings_are_refused(settings, said):
    with pytest.raises(UserError, match=said):
        Training(dataclasses.replace(ACTORS, **{"cluster": "local", **settings}).checked())


def test_missing_ray_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"`cluster` needs Ray .*: pip install -c constraints.txt -e '\.\[cluster\]'"):
        Training(dataclasses.replace(ACTORS, cluster="local"))


@pytest.mark.parametrize(
    ("engine", "precision"),
    [("numba", "float32"), ("onnx", "float32"), ("onnx", "int8"), ("native", "int8"), ("torch", "float32")],
)
def test_read_only_versions_are_loaded(engine, precision):
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
    here, there = (Board(2) for _ in range(2))
    for _ in range(2):
        there.counts["steps"][0] += 5
        there.seconds["wait"][0] += 0.5
        here.give(1, there.take(0))
    assert (here.counts["steps"][1], here.seconds["wait"][1]) == (10, 1.0) and there.counts["steps"][0] == 0
