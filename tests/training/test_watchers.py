"""What keeps an eye on a run: each has its sentence, at most once or now and then."""

import re
import signal
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numba
import pytest

from shoal import TrainConfig, make_env, train
from shoal.envs.base import EnvSpec
from shoal.runs.interrupt import Interrupt, Stopped
from shoal.runs.observer import Observer
from shoal.training import watchers
from shoal.training.clock import PhaseClock
from shoal.training.watchers import CompilationReport, Contention, StallWatch, WarmUp, entropy_of_masked, nothing_shared

# ---- compilation -----------------------------------------------------------------------------------------------------


def test_only_long_compilations_are_explained():
    said = []

    def until(lines):
        began = time.monotonic()
        while len(said) < lines and time.monotonic() < began + 30:
            time.sleep(0.01)

    one = numba.njit(lambda x: x + 1)
    with CompilationReport(said.append, first=30):
        one(1)
    with CompilationReport(said.append, first=0.001):  # slow, but nothing is compiled
        one(1)
        time.sleep(0.02)
    assert said == []
    with CompilationReport(said.append, first=0.001, every=0.02):
        one(1.0)
        until(3)
        one(1j)
    assert said[0] == "Compiling native code for this machine; it is cached for later runs."
    assert said[1:-1] and all(re.fullmatch("Compiled [012] functions? so far.", line) for line in said[1:-1])
    assert re.fullmatch("Compiled 2 functions in [0-9]+ s.", said[-1])


# ---- warm-up ---------------------------------------------------------------------------------------------------------


SHORT = {"hidden": (8,), "evaluate_episodes": 0, "tensorboard": False, "threads": 1}


class Heard(Observer):
    def __init__(self):
        self.said, self.begun = [], None

    def tell(self, sentence):
        self.said.append((self.begun, sentence))

    def advance(self, training):
        self.begun = training.episodes


def spec(**lengths):
    return EnvSpec("toy", ("agent_0",), (3,), (2,), True, **lengths)


def config(**settings):
    return TrainConfig(**{"episodes": 100, "copies": 10, "warmup": 5_000, **settings}).checked()


@pytest.mark.parametrize(
    ("settings", "lengths", "most"),
    [
        ({}, {"episode_length": 25}, 120 * 25),
        ({"warmup": 3_000}, {"episode_length": 25}, None),
        ({"actors": 2}, {"episode_length": 25}, 140 * 25),
        ({"actors": 2, "warmup": 3_000}, {"episode_length": 25}, None),
        ({}, {"stated_length": 25}, 109 * 25),
        ({"warmup": 2_725}, {"stated_length": 25}, None),
        ({}, {}, None),
        ({"warmup": 100, "update_every": 10_000}, {"episode_length": 25}, 120 * 25),  # not one update is due
    ],
)
def test_too_short_run_is_reported_before_the_start(settings, lengths, most):
    said = WarmUp(config(**settings), spec(**lengths)).before()
    assert (said is None) == (most is None)
    assert most is None or f"Nothing will be learned: the run ends after at most {most:,} samples, before" in said


def test_too_short_run_is_reported_once_episodes_are_known():
    watch = WarmUp(config(), spec())
    assert watch.before() is None
    assert watch.so_far(19, 200) is None  # not yet clear
    assert watch.so_far(20, 1_000) is None  # long enough
    assert "will be learned: the run ends after about 4,995 samples, before" in watch.so_far(20, 999)
    assert watch.so_far(21, 999) is None  # said once


def test_too_short_run_is_reported_at_the_end():
    watch = WarmUp(config(episodes=2, copies=1), spec())
    assert "Nothing was learned: the run ended after 30 samples, before the warm-up of 5,000; set" in (
        watch.so_far(2, 30)
    )


def test_too_short_run_with_known_episode_length():
    assert make_env("pettingzoo:mpe2.simple_adversary_v3").spec.stated_length == 25
    assert make_env("pettingzoo:mpe2.simple_adversary_v3", options={"max_cycles": 9}).spec.stated_length == 9
    assert make_env("pettingzoo:mpe2.simple_adversary_v3", episode_length=7).spec.stated_length is None
    assert make_env("pettingzoo:sisl.multiwalker_v9").spec.stated_length == 500  # in the world inside it


@pytest.mark.parametrize(
    ("settings", "before"),
    [
        ({"env": "pettingzoo:mpe2.simple_adversary_v3", "episodes": 4, "copies": 2}, True),
        ({"env": "gym:CartPole-v1", "episodes": 8, "copies": 2, "warmup": 2_000}, False),  # 500 steps would do
    ],
)
def test_too_short_run_is_reported_once(tmp_path, settings, before):
    heard = Heard()
    result = train(TrainConfig(**SHORT, **settings, out=str(tmp_path / "run")), observer=heard, pictures=False)
    ((begun, sentence),) = heard.said
    assert result.updates == 0 and sentence.startswith("Nothing will be learned: ") and (begun is None) == before


def test_sharing_where_no_two_agents_are_alike_is_reported(tmp_path):
    names = [("red_0", "blue_0"), ("red_0", "red_1")]
    odd, alike = (EnvSpec("toy", agents, (3, 3), (2, 2), True) for agents in names)
    assert nothing_shared(config(share="critics"), odd) == (
        "`share=critics` changes nothing in toy: no two agents have the same group, observations and actions."
    )
    assert nothing_shared(config(share="critics"), alike) is nothing_shared(config(), odd) is None
    heard, settings = Heard(), {"env": "gym:CartPole-v1", "share": "all", "episodes": 3, "warmup": 10}
    train(TrainConfig(**SHORT | settings, out=str(tmp_path / "run")), observer=heard, pictures=False)
    assert heard.said == [(None, "`share=all` changes nothing in gym:CartPole-v1: there is one agent.")]


def test_a_target_entropy_that_masks_may_forbid_is_reported():
    spec, learned = (
        EnvSpec("toy", ("a_0",), (5,), (3,), True, masked=True),
        {"algorithm": "masac", "learn_entropy": True},
    )
    assert "half of the maximum of all choices, but toy forbids some" in entropy_of_masked(config(**learned), spec)
    assert entropy_of_masked(config(**learned, target_entropy=0.1), spec) is None
    assert (
        entropy_of_masked(config(**learned), replace(spec, masked=False)) is entropy_of_masked(config(), spec) is None
    )


# ---- other programs --------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(watchers.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(watchers.time, "process_time", lambda: now[0] - 100)  # one thread's worth
    monkeypatch.setattr(watchers.os, "sched_getaffinity", lambda process: {1, 3}, raising=False)
    return now


def waited(root, *seconds, busy=None):
    """Each thread's file, as Linux writes it: nanoseconds on a processor and nanoseconds waiting, and turns.

    And the file of the CPUs: busy for so many seconds, or far longer than anybody waited.
    """
    ticks = round(watchers.TICKS * (1000 * sum(seconds) if busy is None else busy))
    rows = [f"cpu{k} {ticks // 4 if k in (1, 3) else 9 * ticks} {ticks // 4} 0 777 88 0 0 0 0 0" for k in range(4)]
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/stat").write_text("\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *rows, "intr 1 2 3"]))
    for thread, passed in enumerate(seconds):
        folder = root / "proc/self/task" / str(thread)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schedstat").write_text(f"123456 {round(passed * 1e9)} 7\n")


def test_waiting_is_reported_once(tmp_path, clock):
    waited(tmp_path, 1.0, 2.0)
    meter = Contention(tmp_path)
    waited(tmp_path, 1.5, 6.0)  # the second one four seconds more
    clock[0] += 4
    assert meter.sentence(2) is None  # too early to tell
    clock[0] += 4
    assert meter.sentence(2) == (
        "Other programs keep the CPUs busy: this run waits for them 50% of the time; `threads=1` waits less."
    )
    waited(tmp_path, 5.5, 9.5)
    clock[0] += 8
    assert meter.sentence(2) is None


def test_waiting_is_measured_since_the_last_check(tmp_path, clock):
    waited(tmp_path, 0.0)
    meter = Contention(tmp_path)
    waited(tmp_path, 1.0)
    clock[0] += 10
    assert meter.sentence(1) is None
    waited(tmp_path, 7.0)
    clock[0] += 10
    assert meter.sentence(1) == "Other programs keep the CPUs busy: this run waits for them 60% of the time."


def test_threads_that_wait_for_each_other_do_not_wait_for_other_programs(tmp_path, clock):
    waited(tmp_path, 0.0, 0.0, busy=50)
    meter = Contention(tmp_path)
    waited(tmp_path, 3.0, 4.0, busy=62)  # 10 s of these 12 are this process's own
    clock[0] += 10
    assert meter.sentence(1) is None
    waited(tmp_path, 6.0, 8.0, busy=76)  # 4 s are others'
    clock[0] += 10
    assert meter.sentence(1) == "Other programs keep the CPUs busy: this run waits for them 40% of the time."


def test_the_runs_own_processes_are_not_other_programs(tmp_path, clock):
    def processes(seconds):
        """A worker, and what it has started, with so many seconds each."""
        ticks = round(seconds * watchers.TICKS)
        for parent, child in (("self/task/0", "77"), ("77/task/77", "78")):
            for path, text in (
                (f"{parent}/children", f"{child} "),
                (f"{child}/stat", f"{child} (a ) b) R 1{' 0' * 9}"),
            ):
                (tmp_path / "proc" / path).parent.mkdir(parents=True, exist_ok=True)
                spent = f" {ticks // 2} {ticks // 4} {ticks // 4} 0 20 0" if path.endswith("stat") else ""
                (tmp_path / "proc" / path).write_text(text + spent)

    waited(tmp_path, 0.0, busy=50)
    processes(1)
    meter = Contention(tmp_path)
    waited(tmp_path, 5.0, busy=68)  # 8 s of these 18 are the children's, 10 s this process's own
    processes(5)
    clock[0] += 10
    assert meter.sentence(1) is None
    waited(tmp_path, 10.0, busy=86)  # 8 s are others'
    clock[0] += 10
    assert meter.sentence(1) == "Other programs keep the CPUs busy: this run waits for them 50% of the time."


def test_waiting_without_system_statistics(tmp_path, clock):
    meter = Contention(tmp_path)
    clock[0] += 10
    assert meter.sentence(2) is None
    waited(tmp_path, 1.0)
    (tmp_path / "proc/self/task/0/schedstat").write_text("nonsense")
    clock[0] += 10
    assert meter.sentence(2) is None


# ---- an environment that hangs ---------------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch):
    for name, seconds in (("STALL_CHECK", 0.01), ("LONG_STEP", 0.05), ("GIVE_UP", 0.1)):
        monkeypatch.setattr(watchers, name, seconds)
    env = SimpleNamespace(awaited="")
    return SimpleNamespace(clock=PhaseClock(), samples=0, env=env, config=SimpleNamespace(env="gym:Slow-v0"))


def test_long_step_is_reported_once(run):
    said, heard = [], threading.Event()
    interrupt = Interrupt(said.append)

    def tell(sentence):
        said.append(sentence)
        heard.set()

    with StallWatch(run, tell, interrupt):
        run.clock("environment")
        assert heard.wait(10)
        time.sleep(0.05)
    assert said == [
        "gym:Slow-v0 has not returned from step() for 0 s; Ctrl-C twice ends the run, `resume` continues it."
    ]


def test_returning_steps_and_other_phases_are_not_reported(run):
    said = []
    with StallWatch(run, said.append, Interrupt(said.append)):
        time.sleep(0.1)  # in the phase "other"
        run.clock("environment")
        for _ in range(20):
            run.samples += 1
            time.sleep(0.005)
    assert said == []


def test_stop_request_ends_a_hanging_step(run):
    said = []
    run.env.awaited = "worker 2 of 3 (process 7)"
    with (
        pytest.raises(Stopped) as stopped,
        Interrupt(lambda sentence: None) as interrupt,
        StallWatch(run, said.append, interrupt),
    ):
        run.clock("environment")
        signal.raise_signal(signal.SIGTERM)
        time.sleep(30)
    assert stopped.value.number == signal.SIGTERM
    assert len(said) == 2 and all("returned from step() in worker 2 of 3 (process 7) for" in line for line in said)
