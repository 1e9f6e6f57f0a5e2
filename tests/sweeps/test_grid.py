"""What a sweep runs, and what is refused before anything starts."""

import json

import pytest

from shoal.errors import UserError
from shoal.sweeps.grid import parse_seeds, read_sweep, sweep_runs
from shoal.training.config import TrainConfig


def test_every_combination_and_seed_has_its_folder(tmp_path):
    held = {
        "base": {"episodes": 7, "update-every": 3, "gamma": 0.5, "--batch-size": 9},
        "grid": {"hidden": [[8, 8], [16]], "algorithm": ["maddpg", "masac"]},
        "seeds": "0-1,5",
    }
    runs = sweep_runs(held, tmp_path)
    assert len(runs) == 12 and len({run.folder for run in runs}) == 12
    run = runs[-1]
    assert run.folder == tmp_path / "hidden=16-algorithm=masac-seed5" and run.label == "hidden 16, algorithm masac"
    assert (run.config.hidden, run.config.seed, run.config.episodes, run.config.update_every) == ((16,), 5, 7, 3)
    assert (run.config.discount, run.config.batch) == (0.5, 9)
    assert [one.name for one in sweep_runs({}, tmp_path)] == ["seed0"]


@pytest.mark.parametrize(
    ("text", "seeds"), [("3-3", (3,)), ("0-3", (0, 1, 2, 3)), ("0,3, 7", (0, 3, 7)), ([4, 2], (4, 2))]
)
def test_parsing_of_seeds(text, seeds):
    assert parse_seeds("--seeds", text) == seeds


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("5-2", "--seeds is '5-2', but 5-2 counts down; write 2-5"),
        ("", "must be whole numbers such as"),
        ("a", "must be whole numbers such as"),
        ("1-", "must be whole numbers such as"),
        ("-3", "must be whole numbers such as"),
        ("1,1", "has a seed twice"),
        ("0-99999", "100,000 runs are too many; at most 10,000"),
        ("0-9000,9001-18000", "18,001 runs are too many"),
        ([], "must be whole numbers"),
        ([1.5], "must be a whole number"),
        ([True], "must be a whole number"),
        ([-1], "must be from 0"),
        (3, "must be whole numbers"),
        ("3", "--seeds is 3, a single number: write 0-2 for 3 seeds, 3-3 for seed 3 alone"),
        ("0", "--seeds is 0, a single number: write 0-0 for seed 0 alone"),
    ],
)
def test_wrong_seeds_are_refused(text, sentence):
    with pytest.raises(UserError, match=sentence):
        parse_seeds("--seeds", text)


NUMBERS = [
    "batch", "warmup", "capacity", "episodes", "copies", "agents", "neighbors", "n_step", "update_every", "log_every",
]  # fmt: skip


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        ([], "it must be a JSON object"),
        ({"gird": {}}, "'gird' is not known; choose one of: base, grid, seeds"),
        ({"base": []}, "base must be a JSON object"),
        ({"base": {"learning_rat": 1}}, "unknown setting 'learning_rat'; perhaps learning_rate"),
        ({"base": {"n_envs": 1}}, "unknown setting 'n_envs'; perhaps copies"),
        ({"grid": {"EPISODES": [1]}}, "unknown setting 'EPISODES'; perhaps episodes"),
        ({"base": {"--total-timesteps": 1}}, "unknown setting '--total-timesteps'; perhaps episodes"),
        ({"base": {"log_dir": "x"}}, "unknown setting 'log_dir'."),
        ({"base": {"batch": 0}}, "`batch` is 0"),
        ({"base": {"batch": "many"}}, "`batch` is 'many'"),
        ({"base": {"env": "nothing"}}, "The world 'nothing' is not known"),
        ({"base": {"seed": 1}}, "seeds has all of them"),
        ({"grid": {"out": ["a"]}}, "every run has a folder of its own"),
        ({"grid": {"batch": 8}}, "must have a list of values"),
        ({"grid": {"batch": []}}, "must have a list of values"),
        ({"grid": {"batch": [8, 8]}}, "a value of 'batch' twice"),
        ({"grid": {"batch": [8]}, "base": {"batch": 8}}, "in base and in grid"),
        ({"grid": {"tau": [0.1, 2]}}, "`tau` is 2"),
        ({"base": {"n_step": 1, "n-step": 2}}, "'n_step' twice"),
        ({"base": {"lr": 1, "learning_rate": 2}}, "'learning_rate' twice"),
        ({"grid": {"batch": list(range(1, 200))}, "seeds": "0-99"}, "19,900 runs are too many"),
        ({"grid": {name: list(range(10)) for name in NUMBERS}}, "10,000,000,000 runs are too many"),
        ({"grid": {"env_options": ['{"a": 1}', '{"a":1}']}, "base": {"env": "gym:CartPole-v1"}}, "same folder name"),
    ],
)
def test_wrong_sweeps_are_refused(tmp_path, held, sentence):
    (tmp_path / "sweep.json").write_text(json.dumps(held))
    with pytest.raises(UserError, match=sentence) as caught:
        read_sweep(tmp_path / "sweep.json", tmp_path / "out")
    assert str(caught.value).startswith("The sweep '") and "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_damaged_sweep_files_are_refused(tmp_path):
    for content in (b'{"base": ', b"\xff\xfe", 3000 * b"[", b'{"grid": {"tau": [1], "tau": [0.5]}}'):
        (tmp_path / "sweep.json").write_bytes(content)
        with pytest.raises(UserError, match="is not JSON"):
            read_sweep(tmp_path / "sweep.json", tmp_path)
    with pytest.raises(UserError, match="No such file"):
        read_sweep(tmp_path / "none.json", tmp_path)


def test_folders_of_other_settings_are_refused(tmp_path):
    (tmp_path / "seed0").mkdir()
    (tmp_path / "seed0" / "config.json").write_text(TrainConfig(episodes=5, update="native").to_json())
    assert sweep_runs({"base": {"episodes": 5}}, tmp_path)[0].started  # auto has become native
    with pytest.raises(UserError, match="holds a run with episodes 5, not 6"):
        sweep_runs({"base": {"episodes": 6}}, tmp_path)
    (tmp_path / "seed0" / "config.json").write_text(TrainConfig(episodes=5, update="native", agents=6).to_json())
    with pytest.raises(UserError, match="holds a run with agents 6, not None"):
        sweep_runs({"base": {"episodes": 5}}, tmp_path)


def test_settings_fixed_by_the_reference_are_refused(tmp_path):
    (tmp_path / "seed0").mkdir()
    built = TrainConfig(implementation="reference", copies=1, minibatch="independent")
    (tmp_path / "seed0" / "config.json").write_text(built.to_json())
    assert sweep_runs({"base": {"implementation": "reference"}}, tmp_path)[0].started
