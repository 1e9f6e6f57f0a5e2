"""Third-party algorithms, samplers and worlds by MODULE:CLASS, as the class itself, and by an entry point."""

import dataclasses
import importlib.metadata
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import shoal
from shoal import Callback, TrainConfig, train
from shoal.algorithms import D4PG, DQN, MADDPG, MASAC, LearnConfig, base_algorithm
from shoal.algorithms.base import heads, network_weights
from shoal.cli import main
from shoal.envs import make_env
from shoal.errors import UserError
from shoal.replay import Uniform, make_sampler
from shoal.sweeps.grid import sweep_runs
from shoal.training.config import read_config
from shoal.training.prechecks import check_code
from tests.cli.conftest import tidy  # noqa: F401  signal handlers and the path of modules are put back
from tests.cli.helpers import one_sentence

CODE = """
import torch
from shoal.algorithms import D4PG, DQN, MADDPG, Team
from shoal.replay import Uniform

class Twin(MADDPG):
    heads = 2
    defaults = {"learning_rate": 0.003, "hidden": (8,)}

    def __init__(self, spec, config, seed, device, scale=1.0):
        super().__init__(spec, config, seed, device)
        self.scale = scale

    @torch.no_grad()
    def target_q(self, batch, phase):
        return self.scale * super().target_q(batch, phase)

class Narrow(D4PG):
    defaults = {"atoms": 11}

class Q(DQN):
    pass

class Wrong(Team):
    defaults = {"gumbel": "soft"}

class Newest:
    def __init__(self, behind=10):
        self.behind = behind

    needs = 1

    def draw(self, history, minibatches, batch, rng):
        copies, transitions = Uniform().draw(history, minibatches, batch, rng)
        return copies, transitions.clip(min=history.added[copies] - self.behind)

class Future(Newest):
    def draw(self, history, minibatches, batch, rng):
        copies, transitions = super().draw(history, minibatches, batch, rng)
        return copies, transitions + 10**6

class Short(Newest):
    def draw(self, history, minibatches, batch, rng):
        copies, transitions = super().draw(history, minibatches, batch, rng)
        return copies[:, 1:], transitions

class NoSampler:
    pass

class HalfWorld:
    def __init__(self, copies, **others):
        self.copies = copies
"""
SMALL = {"hidden": (8,), "batch": 16, "warmup": 100, "update_every": 50, "copies": 4, "log_every": 10, "threads": 1}
RUN = {**SMALL, "episodes": 40, "evaluate_episodes": 0, "tensorboard": False, "keep_replay": True}
OURS = {"algorithm": "my_parts:Twin", "algorithm_options": '{"scale": 0.5}', "sampler": "my_parts:Newest"}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A working directory with a module, and a place for the key that signs runs."""
    (tmp_path / "my_parts.py").write_text(CODE)
    (tmp_path / "broken_parts.py").write_text("import math\n\nmath.sqrt(-1)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    forget(monkeypatch)
    return tmp_path


def forget(monkeypatch):
    for name in ("my_parts", "broken_parts"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def weights(run):
    return load_file(max(Path(run).glob("checkpoints/0*")) / "weights.safetensors")


def test_defaults_are_its_own_and_those_of_the_algorithm_that_it_derives_from():
    twin = TrainConfig(algorithm="my_parts:Twin", tau=0.5)
    assert (twin.learning_rate, twin.hidden, twin.discount, twin.tau) == (0.003, (8,), 0.95, 0.5)
    narrow = LearnConfig(algorithm="my_parts:Narrow")
    assert (narrow.atoms, narrow.v_min, narrow.learning_rate) == (11, -150.0, 1e-4)
    assert [base_algorithm(kind) for kind in (MADDPG, MASAC, D4PG, DQN)] == ["maddpg", "masac", "d4pg", "dqn"]


def test_a_stored_configuration_is_complete_without_its_code(monkeypatch):
    for name in ("Twin", "Narrow", "Q"):
        stored = json.loads(TrainConfig(algorithm=f"my_parts:{name}", update="torch").to_json())
        forget(monkeypatch)
        config = TrainConfig.stored(config_fields(stored))
        assert json.loads(config.to_json()) == stored and "my_parts" not in sys.modules


def test_critics_are_counted_for_the_memory_check():
    spec = make_env("cooperative-navigation").spec
    for name, kind in (("maddpg", MADDPG), ("masac", MASAC), ("d4pg", D4PG), ("dqn", DQN)):
        assert heads(LearnConfig(algorithm=name)) == kind.heads
    one, two = (
        network_weights(spec, LearnConfig(algorithm=name, hidden=(8,)))[1] for name in ("maddpg", "my_parts:Twin")
    )
    assert two == 2 * one


def test_a_stopped_run_resumes_to_the_same_bits_in_another_process_and_its_folder_needs_no_trust(monkeypatch):
    class Stops(Callback):
        def on_log(self, run, line):
            if run.episodes >= 30:
                raise KeyboardInterrupt

    train(TrainConfig(**RUN, **OURS, out="whole"), pictures=False)
    with pytest.raises(KeyboardInterrupt):
        train(TrainConfig(**RUN, **OURS, checkpoint_every=10, out="stopped"), callbacks=[Stops()], pictures=False)
    forget(monkeypatch)
    train(TrainConfig(out="stopped"), resume=True, pictures=False)
    a, b = weights("whole"), weights("stopped")
    assert a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
    plain = train(TrainConfig(**RUN, **{**OURS, "algorithm_options": ""}, out="plain"), pictures=False)
    assert not np.array_equal(a["actors.weights.0"], weights(plain.run)["actors.weights.0"])  # the option has an effect


def test_a_folder_from_elsewhere_is_read_without_its_code_which_runs_only_if_trusted(monkeypatch):
    train(TrainConfig(**RUN, **OURS, out="run"), pictures=False)
    shutil.copytree("run", "copy")
    forget(monkeypatch)
    assert read_config(Path("copy")).checked().algorithm == "my_parts:Twin" and "my_parts" not in sys.modules
    config = json.loads(Path("copy/config.json").read_text())
    assert TrainConfig.stored({**config_fields(config), "learning_rate": None, "hidden": None}).hidden == (64, 64)
    for refused in (lambda: shoal.load("copy"), lambda: train(TrainConfig(out="copy"), resume=True)):
        with pytest.raises(
            UserError, match="names the algorithm 'my_parts:Twin', which is third-party code: add `trust"
        ):
            refused()
    assert "my_parts" not in sys.modules
    asked = {"algorithm": "my_parts:Twin", "out": "copy"}
    with pytest.raises(UserError, match="names the sampler 'my_parts:Newest'"):
        train(TrainConfig(**asked), resume=True, asked=["algorithm"])
    assert shoal.load("copy", trust=True).algorithm == shoal.load("run").algorithm == "my_parts:Twin"
    text = TrainConfig(algorithm="my_parts:Twin", algorithm_options='{"scale": "a"}')
    with pytest.raises(UserError, match=r"passes {\"scale\": \"a\"} to the algorithm's code"):
        check_code(text, Path("copy"), asked, trust=False)
    check_code(text, Path("copy"), {**asked, "algorithm_options": text.algorithm_options}, trust=False)


def config_fields(config):
    return {field.name: config[field.name] for field in dataclasses.fields(TrainConfig)}


def test_classes_of_a_script_work_in_its_process_only():
    class Local(MADDPG):
        """It has no name that a module knows."""

    config = TrainConfig(**{**RUN, "episodes": 10}, algorithm=Local, out="run")
    assert config.algorithm.startswith("__main__:") and train(config, pictures=False).finished
    with pytest.raises(UserError, match=r"names the algorithm '__main__:.*Local#1', which is third-party code"):
        shoal.load("run")
    assert shoal.load("run", trust=True).algorithm == config.algorithm
    with pytest.raises(UserError, match="which is defined in the running script or notebook, where the processes of a"):
        sweep_runs({"base": {"algorithm": Local}}, Path("sweep"))
    gone = "`algorithm` is __main__:Gone, but that is defined in the script or notebook that trained it; move it"
    with pytest.raises(UserError, match=gone):
        TrainConfig(algorithm="__main__:Gone")


def test_names_of_installed_packages(monkeypatch):
    entries = [
        importlib.metadata.EntryPoint(name, value, f"shoal.{group}")
        for name, value, group in [
            ("twin", "my_parts:Twin", "algorithms"), ("maddpg", "my_parts:Twin", "algorithms"),
            ("two", "a:A", "algorithms"), ("two", "b:B", "algorithms"), ("newest", "my_parts:Newest", "samplers"),
            ("toy", "tests.toys:Toy", "envs"),
        ]
    ]  # fmt: skip
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [e for e in entries if e.group == group])
    config = TrainConfig(algorithm="twin", sampler="newest", env="toy").checked()
    assert (config.algorithm, config.sampler, config.env) == (
        "my_parts:Twin",
        "my_parts:Newest",
        "shoal:tests.toys:Toy",
    )
    assert TrainConfig(algorithm="maddpg").algorithm == "maddpg"  # Shoal's own name is Shoal's
    with pytest.raises(UserError, match=r"'two' has several meanings: a:A, b:B; choose one of these\.$"):
        TrainConfig(algorithm="two")
    with pytest.raises(
        UserError, match=r"'twim' is not known \(perhaps you meant twin\); choose one of: maddpg, .*, twin"
    ):
        TrainConfig(algorithm="twim").checked()


def test_what_a_sampler_draws_is_checked():
    ring = shoal_ring()
    assert ring.sample(make_sampler("my_parts:Newest", options={"behind": 1}), 8, np.random.default_rng(0)) is not None
    for name, why in (
        ("Future", "returned transitions that are not from oldest"),
        ("Short", "two arrays of whole numb"),
    ):
        with pytest.raises(UserError, match=why):
            ring.sample(make_sampler(f"my_parts:{name}"), 8, np.random.default_rng(0))


def shoal_ring():
    from shoal.replay import Ring

    env = make_env("cooperative-navigation", copies=2)
    ring = Ring(env.spec, copies=2, capacity=100)
    ring.begin(env.reset())
    for _ in range(5):
        actions = env.sample_actions()
        ring.add(actions, env.step(actions))
    assert ring.sample(Uniform(), 8, np.random.default_rng(0)) is not None
    return ring


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--algorithm my_parts:Twim", "but my_parts has no Twim (perhaps you meant Twin)."),
        ("--algorithm my_part:Twin", "there is no module my_part, neither installed nor in the working directory."),
        ("--algorithm broken_parts:A", "failed: math domain error (broken_parts.py:3 in <module>)."),
        ("--algorithm my_parts:Newest", "but must be a subclass of shoal.algorithms.Team or of an algorithm."),
        ("--algorithm my_parts:Wrong", "whose `defaults` contain 'gumbel', but may only contain: atoms, "),
        ("--algorithm my_parts:", "but must be MODULE:CLASS."),
        ("--algorithm my_parts:Twin --algorithm-options {\"a\":1}", "do not fit Twin: got an unexpected keyword arg"),
        ("--algorithm my_parts:Twin --algorithm-options {", "--algorithm-options is not JSON"),
        ("--algorithm-options {\"a\":1}", "is for your own algorithm (MODULE:CLASS), but --algorithm is maddpg."),
        ("--algorithm my_parts:Twin --atoms 3", "--atoms is a setting of d4pg, but --algorithm is my_parts:Twin."),
        ("--algorithm my_parts:Narrow --v-min 200", "--v-min is 200.0, but must be below"),
        ("--algorithm my_parts:Twin --update native", "there is no native update for my_parts:Twin"),
        ("--sampler my_parts:Newest --sampler-options {\"a\":1}", "do not fit Newest: got an unexpected keyword"),
        ("--sampler my_parts:NoSampler", "must be a class with `needs`, a whole number, and `draw`."),
        ("--sampler my_parts:Newest --implementation reference", "the reference does not have it."),
        ("--env shoal:my_parts:Newest", "got an unexpected keyword argument 'copies'"),
        ("--env shoal:my_parts:NoWorld", "the module my_parts has no class or function NoWorld."),
    ],
)  # fmt: skip
def test_mistakes_end_in_one_sentence(words, sentence, capsys):
    assert main(["train", *words.split(), "--episodes", "3", "--out", "run"]) == 2
    assert sentence in one_sentence(capsys.readouterr().err) and not Path("run").exists()


def test_a_world_must_be_a_vector_env():
    with pytest.raises(UserError, match=r"makes a HalfWorld, but must make a VectorEnv .*: it has no episode_step\.$"):
        make_env("shoal:my_parts:HalfWorld")
