"""What the commands write, say and return: signals, resuming, streams that are closed, worlds of others, odd files."""

import contextlib
import io
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from shoal import TrainConfig, processes, train
from shoal.cli import main
from shoal.console import print_rows
from shoal.errors import UserError
from shoal.training import loop
from shoal.training.checkpoint import Checkpoints
from shoal.training.config import read_config
from shoal.training.events import EventsFile
from shoal.training.run_folder import MetricsLog, RunFolder, finite, new_run

HOME = Path(__file__).parent.parent
SHORT = "--episodes 60 --warmup 300 --batch 32 --hidden 8 --evaluate-episodes 4 --threads 1 --log-every 10".split()
QUIET = [*SHORT, "--no-tensorboard", "--quiet"]


@pytest.fixture(autouse=True)
def tidy(monkeypatch):
    """A command sets signal handlers and extends the path of modules; both are put back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def shoal(capsys):
    """Run a command in this process: exit code, standard output, standard error."""

    def run(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def process():
    """Run a command line of the shell with `shoal` in it, in a process of its own."""

    def run(line, **options):
        code = "import sys; from shoal.cli import main; sys.exit(main())"
        line = line.replace("shoal", f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}", 1)
        return subprocess.run(line, shell=True, capture_output=True, text=True, timeout=120, **options)

    return run


def one_sentence(said):
    assert said.startswith("shoal: ") and said.endswith(".\n") and len(said.splitlines()) == 1, said
    return said


def send(*numbers):
    for number in numbers:
        os.kill(os.getpid(), number)


def call_before(monkeypatch, owner, name, action, at=1):
    """Call `action` before the method or function called `name` is entered for the `at`-th time."""
    original, calls = getattr(owner, name), 0

    def patched(*arguments, **keywords):
        nonlocal calls
        calls += 1
        if calls == at:
            action()
        return original(*arguments, **keywords)

    monkeypatch.setattr(owner, name, patched)


def strict(text):
    """JSON without NaN and infinities, which only Python knows."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def lines(run):
    data = (Path(run) / "metrics.jsonl").read_bytes()
    assert b"\0" not in data
    return [strict(line) for line in data.splitlines()]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """A finished run, to be looked at only."""
    run = tmp_path_factory.mktemp("finished") / "run"
    assert main(["train", *SHORT, "--quiet", "--checkpoint-every", "20", "--out", str(run)]) == 0
    return run


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory):
    """A run that was stopped after some lines of its log, to be looked at only."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        call_before(patch, loop.Training, "step", lambda: send(signal.SIGTERM), at=50)
        assert main(["train", *SHORT, "--quiet", "--out", str(run)]) == 128 + signal.SIGTERM
    return run


@pytest.fixture
def finished(finished_run, tmp_path):
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


@pytest.fixture
def stopped(stopped_run, tmp_path):
    return Path(shutil.copytree(stopped_run, tmp_path / "run"))


# ---- words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", ["20", "200"])
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("train --seed 1e3", "--seed '1e3' is not a whole number"),
        ("train --tau x", "--tau 'x' is not a number"),
        ("train --agents 2.5", "--agents '2.5' is not a whole number or None"),
        ("train --target-entropy x", "--target-entropy 'x' is not a number or None"),
        ("train --hidden 8,8", "--hidden '8,8' is not a row of whole numbers such as 64 64"),
        ("train --rules chess", "--rules 'chess' is not one of 'mpe2', 'openai'"),
        ("train --tau", "--tau needs a value"),
        ("train --jsno", "Unrecognized options: --jsno; perhaps you meant --json"),
        ("train --agnets 3 --foo", "Unrecognized options: --agnets, 3, --foo; perhaps you meant --agents"),
        ("evaluate", "RUN is missing (Run folder)"),
        ("bench ENV", "'ENV' is not one of 'env', "),
    ],
)
def test_the_parsers_complaints_in_plain_words(shoal, monkeypatch, columns, words, sentence):
    monkeypatch.setenv("COLUMNS", columns)
    code, out, err = shoal(*words.split())
    assert code == 2 and out == "" and one_sentence(err).startswith(f"shoal: {sentence}")
    assert err.endswith(f" (shoal {words.split()[0]} --help tells more).\n")


@pytest.mark.parametrize("command", ["evaluate", "watch"])
@pytest.mark.parametrize("seed", ["-1", str(2**70)])
def test_seeds_out_of_range(shoal, finished_run, command, seed):
    code, _, err = shoal(command, finished_run, "--seed", seed)
    assert code == 2 and f"--seed is {seed}, but must be from 0 to" in one_sentence(err)


# ---- the run folder ------------------------------------------------------------------------------------------------


def test_a_finished_run_keeps_one_checkpoint_and_no_replay(finished_run):
    assert len(os.listdir(finished_run / "checkpoints")) == 1
    assert not (finished_run / "checkpoints" / "replay").exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "result.json"])
def test_out_onto_something_of_a_run_is_refused(shoal, tmp_path, name):
    (tmp_path / name).write_text("precious")
    code, _, err = shoal("train", *QUIET, "--out", tmp_path)
    assert code == 2 and "already holds a run" in one_sentence(err)
    assert os.listdir(tmp_path) == [name] and (tmp_path / name).read_text() == "precious"


@pytest.mark.parametrize("harm", ["missing", "shorter", "torn"])
def test_a_log_that_lost_lines(shoal, stopped, harm):
    path = stopped / "metrics.jsonl"
    data = path.read_bytes()
    path.unlink()
    if harm != "missing":
        path.write_bytes(data[: data.index(b"\n") + (1 if harm == "shorter" else 40)])
    code, _, err = shoal("train", "--resume", stopped)
    assert code == 0 and "has lost lines" in err
    episodes = [line["episode"] for line in lines(stopped)]
    assert episodes[-1] >= 60 and episodes == sorted(episodes)


@pytest.mark.parametrize(
    "text", ["{}", "null", "5", "nonsense", "[]", "\0", '{"finished": true}', 10**5 * "["], ids=lambda text: text[:20]
)
def test_a_damaged_result(shoal, finished, text):
    (finished / "result.json").write_text(text)
    code, out, err = shoal("train", "--resume", finished)
    assert code == 2 and out == "" and "result.json" in one_sentence(err)


@pytest.mark.parametrize(
    "settings",
    [
        {"episodes": "many"}, {"seconds": "long"}, {"return_mean": "good"}, {"run": None, "episodes": None},
        {"return_random": "bad", "return_random_ci95": {}}, {"episodes": 6.5}, {"phases": 3}, {"signal": "TERM"},
    ],
    ids=str,
)  # fmt: skip
def test_a_result_of_other_types(shoal, finished, settings):
    held = json.loads((finished / "result.json").read_text())
    (finished / "result.json").write_text(json.dumps({**held, **settings}))
    code, out, err = shoal("train", "--resume", finished)
    assert code == 2 and out == "" and "result.json" in one_sentence(err)


@pytest.mark.parametrize(
    "settings",
    [
        {"batch": 64.0}, {"learning_rate": float("inf")}, {"threads": 2.0}, {"agents": float("nan")}, {"hidden": 8},
        {"env_options": {}}, {"episodes": True}, {"env": None}, {"hidden": [[8]]}, {"rules": ["mpe2"]},
        {"copies": 10**30}, {"device": 0}, {"out": 3},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("command", ["train --resume", "evaluate"])
def test_a_configuration_of_other_types(shoal, finished_run, tmp_path, settings, command):
    held = json.loads((finished_run / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**held, **settings}))
    code, out, err = shoal(*command.split(), tmp_path)
    assert code == 2 and out == "" and "config.json' cannot be used: --" in one_sentence(err)
    assert os.listdir(tmp_path) == ["config.json"]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", 10**5 * b"[", None], ids=["empty", "no text", "deep", "folder"])
def test_a_configuration_that_is_none(shoal, tmp_path, content):
    path = tmp_path / "config.json"
    path.mkdir() if content is None else path.write_bytes(content)
    code, _, err = shoal("train", "--resume", tmp_path)
    assert code == 2 and "config.json' cannot be read: " in one_sentence(err) and "Errno" not in err


def test_numbers_that_json_has_no_word_for():
    nan = float("nan")
    assert finite({"a": nan, "b": {"c": [1.5, -nan, (float("inf"), 2)]}}) == {
        "a": None,
        "b": {"c": [1.5, None, [None, 2]]},
    }


def test_python_numbers_and_paths_are_taken_for_what_they_mean(tmp_path):
    settings = {"episodes": 30, "warmup": 300, "evaluate_episodes": 2, "tensorboard": False, "threads": 1}
    numbers = {"batch": np.int64(32), "learning_rate": np.float32(0.01), "hidden": [8, 8]}
    result = train(TrainConfig(**settings, **numbers, out=tmp_path / "run"))
    assert result.finished and result.run == str(tmp_path / "run")
    config = read_config(tmp_path / "run")
    assert (config.batch, config.hidden, type(config.learning_rate)) == (32, (8, 8), float)
    for batch in (32.0, True, np.float32(32)):
        with pytest.raises(UserError, match=r"--batch is .* whole number"):
            train(TrainConfig(**settings, batch=batch, out=tmp_path / "other"))
    assert not (tmp_path / "other").exists()


def test_runs_started_at_once_take_different_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    barrier, folders = threading.Barrier(8), []

    def start():
        barrier.wait()
        folders.append(new_run(TrainConfig()))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({folder.path for folder in folders}) == len(os.listdir("runs")) == 8
    for folder in folders:
        folder.close()


def test_a_run_that_is_being_trained_has_one_trainer(shoal, stopped, tmp_path):
    for words in (["--resume", stopped], [*QUIET, "--out", tmp_path / "new"]):
        with RunFolder(Path(words[-1]), make=True):
            code, _, err = shoal("train", *words)
        assert code == 2 and "is being trained by another process" in one_sentence(err)
    assert os.listdir(tmp_path / "new") == []


def test_lines_of_the_log_and_the_result(shoal, tmp_path):
    code, _, _ = shoal("train", *QUIET, "--warmup", "1200", "--evaluate-episodes", "1", "--out", tmp_path / "run")
    assert code == 0
    first, *_, last = lines(tmp_path / "run")
    losses = [key for key in last if key.startswith("loss/")]
    assert losses and first.keys() == last.keys()
    assert all(first[key] is None for key in losses) and all(isinstance(last[key], float) for key in losses)
    result = strict((tmp_path / "run" / "result.json").read_text())
    assert result["return_random"] < 0 and result["return_random_ci95"] is None
    code, _, err = shoal("train", *QUIET, "--log-every", "101", "--out", tmp_path / "other")
    assert code == 2 and "--log-every is 101" in one_sentence(err)


# ---- TensorBoard ---------------------------------------------------------------------------------------------------


def test_events_can_be_read_back_also_of_a_resumed_run(shoal, stopped):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with (stopped / "metrics.jsonl").open("a") as log:  # killed after the line, before the next checkpoint
        log.write('{"episode": 59}\n')
    EventsFile(stopped, 0).add({"train/return_mean": 1.0}, 59)
    assert shoal("train", "--resume", stopped, "--quiet")[0] == 0
    accumulator = EventAccumulator(str(stopped)).Reload()
    read = [(event.step, event.value) for event in accumulator.Scalars("train/return_mean")]
    written = [(line["episode"], line["return_mean"]) for line in lines(stopped)]
    assert [step for step, _ in read] == [step for step, _ in written]
    assert np.allclose([value for _, value in read], [value for _, value in written])
    assert {"loss/q", "time/environment", "train/steps_per_second"} <= {*accumulator.Tags()["scalars"]}


@contextlib.contextmanager
def files_of_at_most(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_with_tensorboard(shoal, tmp_path):
    with files_of_at_most(20_000):
        words = [*SHORT, "--episodes", "200", "--log-every", "1", "--checkpoint-every", "0", "--quiet"]
        code, _, err = shoal("train", *words, "--out", tmp_path / "run")
    assert code == 2 and "File too large" in one_sentence(err) and str(tmp_path / "run") in err


def test_a_full_disk_is_told_by_the_events_file_at_once(tmp_path):
    log = MetricsLog(tmp_path, tensorboard=True)
    events = log.paths[1]
    with (
        files_of_at_most(1_000),
        pytest.raises(UserError, match=r"events\.out\.\S+' cannot be written: File too large"),
    ):
        for episode in range(100):
            before = events.stat().st_size
            log.add({"episode": episode, "a": 1.0})  # shorter in the log than among the events
            assert events.stat().st_size > before
    assert log.path.stat().st_size < 900
    log.close()


# ---- signals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [(), (signal.SIGTERM,), (signal.SIGHUP, signal.SIGTERM)], ids=str)
def test_sigterm_saves_and_json_is_still_one_object(shoal, tmp_path, monkeypatch, more):
    call_before(monkeypatch, loop.Training, "step", lambda: send(signal.SIGTERM), at=50)
    call_before(monkeypatch, Checkpoints, "save", lambda: send(*more))  # while the run is being saved
    code, out, err = shoal("train", *QUIET, "--json", "--out", tmp_path / "a run")
    assert code == 128 + signal.SIGTERM
    result = strict(out)
    assert result["signal"] == signal.SIGTERM and not result["finished"] and 0 < result["episodes"] < 60
    assert "Stopped and saved" in err and len(err.splitlines()) == 1
    *_, command, option, folder = shlex.split(err)  # what a shell would make of the sentence
    assert (command, option, folder) == ("train", "--resume", str(tmp_path / "a run"))
    monkeypatch.undo()
    code, out, _ = shoal("train", "--resume", folder, "--quiet", "--json")
    assert code == 0 and strict(out)["finished"]


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_ctrl_c_stops_the_saving(shoal, tmp_path, monkeypatch, first):
    call_before(monkeypatch, loop.Training, "step", lambda: send(first), at=20)
    call_before(monkeypatch, Checkpoints, "_write", lambda: send(signal.SIGINT))
    code, out, err = shoal("train", *QUIET, "--json", "--out", tmp_path / "run")
    assert (code, out, err) == (128 + signal.SIGINT, "", "Interrupted.\n")
    monkeypatch.undo()
    code, _, err = shoal("train", "--resume", tmp_path / "run")
    assert code == 0 and "no checkpoint yet: starting over" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_during_the_evaluation(shoal, tmp_path, monkeypatch, number):
    call_before(monkeypatch, loop, "evaluate_team", lambda: send(number))
    code, out, err = shoal("train", *QUIET, "--json", "--out", tmp_path / "run")
    assert code == 128 + number and "--resume" in err
    assert strict(out)["signal"] == number and not (tmp_path / "run" / "result.json").exists()
    monkeypatch.undo()
    code, out, _ = shoal("train", "--resume", tmp_path / "run", "--quiet", "--json")
    assert code == 0 and strict(out)["return_random"] is not None
    assert len(os.listdir(tmp_path / "run" / "checkpoints")) == 1


def test_a_signal_before_there_is_a_run(shoal, tmp_path, monkeypatch):
    call_before(monkeypatch, loop, "build", lambda: send(signal.SIGTERM))
    assert shoal("train", *QUIET, "--out", tmp_path / "run") == (128 + signal.SIGTERM, "", "Interrupted.\n")
    assert os.listdir(tmp_path) == []


# ---- resuming ------------------------------------------------------------------------------------------------------


def test_resume_and_out_name_the_folder_twice(shoal, finished_run, tmp_path):
    for words in (["--out", tmp_path / "b"], [f"--out={tmp_path / 'b'}"]):
        for order in ([*words, "--resume", finished_run], ["--resume", finished_run, *words]):
            code, _, err = shoal("train", *order)
            assert code == 2 and "twice" in one_sentence(err)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("words", ["--batch 1024", "--batch=1024", "--hidden 64 64", "--episodes 60000"])
def test_a_default_that_was_asked_for_is_refused(shoal, stopped_run, words):
    code, _, err = shoal("train", "--resume", stopped_run, *words.split())
    assert code == 2 and "a resumed run keeps its settings" in one_sentence(err)


def test_what_was_asked_for_and_is_so_is_taken(shoal, finished_run):
    assert shoal("train", f"--resume={finished_run}", "--batch", "32", "--hidden", "8", "--quiet")[0] == 0


@pytest.mark.parametrize("command", ["train --out", "train --resume", "evaluate", "watch"])
def test_a_name_that_is_too_long(shoal, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    code, out, err = shoal(*command.split(), 300 * "a")
    assert code == 2 and out == "" and "File name too long" in one_sentence(err)
    assert os.listdir(tmp_path) == []


def test_resuming_a_finished_run_writes_nothing(shoal, finished):
    (finished / "curve.png").unlink()
    before = {path: path.stat().st_mtime_ns for path in (finished, *finished.rglob("*"))}
    finished.chmod(0o555)  # stops everybody but root
    code, _, err = shoal("train", "--resume", finished)
    finished.chmod(0o755)
    assert code == 0 and "is finished" in err
    assert {path: path.stat().st_mtime_ns for path in (finished, *finished.rglob("*"))} == before


# ---- worlds of others ----------------------------------------------------------------------------------------------

WORLDS = '''
import os

import numpy as np
from gymnasium.spaces import Box, Discrete


class World:
    """One agent, episodes of five steps."""

    possible_agents = ["a"]

    def __init__(self, render_mode=None):
        self.render_mode, self.agents = render_mode, []

    def observation_space(self, agent):
        return Box(-1, 1, (2,))

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.time = ["a"], 0
        return {"a": np.zeros(2, np.float32)}, {"a": {}}

    def step(self, actions):
        self.time += 1
        over = {"a": self.time == 5}
        self.agents = [] if over["a"] else ["a"]
        return {"a": np.zeros(2, np.float32)}, {"a": float(actions["a"])}, over, {"a": False}, {"a": {}}

    def render(self):
        raise RuntimeError("no light.\\nAnd more about it.")

    def close(self):
        pass


class chatty(World):
    def __init__(self, render_mode=None):
        print("made")
        super().__init__(render_mode)

    def reset(self, seed=None, options=None):
        print("reset")
        return super().reset(seed)

    def step(self, actions):
        print("step")
        return super().step(actions)


class talker(World):
    def step(self, actions):
        print("step")
        return super().step(actions)


class native(World):
    def reset(self, seed=None, options=None):
        os.write(1, b"from C\\n")
        return super().reset(seed)


class broken(World):
    def step(self, actions):
        raise RuntimeError("a wheel came off")
'''


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A working directory with a person's own worlds in it."""
    (tmp_path / "worlds_of_mine.py").write_text(WORLDS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    sys.modules.pop("worlds_of_mine", None)


def test_a_world_that_prints_does_not_spoil_json(shoal, workplace):
    words = ["--env", "pettingzoo:worlds_of_mine:chatty", "--out", "run"]
    code, out, err = shoal("train", *QUIET, *words, "--json")
    assert code == 0 and strict(out)["finished"] and "step" in err
    code, out, _ = shoal("evaluate", "run", "--episodes", "3", "--json")
    assert code == 0 and strict(out)["episodes"] == 3


def test_a_world_whose_native_code_prints_does_not_spoil_json(process, workplace):
    words = shlex.join([*QUIET, "--env", "pettingzoo:worlds_of_mine:native", "--evaluate-episodes", "0"])
    result = process(f"shoal train {words} --json --out run", env={**os.environ, "PYTHONPATH": str(HOME)})
    assert result.returncode == 0 and strict(result.stdout)["finished"] and "from C" in result.stderr


def test_a_world_that_cannot_draw_itself(shoal, workplace):
    assert shoal("train", *QUIET, "--env", "pettingzoo:worlds_of_mine:World", "--out", "run")[0] == 0
    code, out, err = shoal("watch", "run")
    assert code == 2 and out == "" and "its render() fails (no light)" in one_sentence(err)
    assert not list((workplace / "run").glob("episode*"))


@pytest.mark.parametrize("out", [[], ["--out", "run"], ["--out", "full"]], ids=str)
def test_a_world_that_fails_at_its_first_step_leaves_no_run(shoal, workplace, out):
    (workplace / "full").mkdir()
    for name in ("notes.txt", "events.csv"):
        (workplace / "full" / name).write_text("mine")
    with pytest.raises(RuntimeError, match="a wheel came off"):
        shoal("train", *SHORT, "--quiet", "--env", "pettingzoo:worlds_of_mine:broken", *out)
    assert {*os.listdir(workplace)} - {"runs"} == {"worlds_of_mine.py", "full"}
    assert not list(workplace.glob("runs/*"))
    assert sorted(os.listdir("full")) == ["events.csv", "notes.txt"]


def test_a_resumed_run_that_cannot_step_is_kept(workplace, shoal, finished_run):
    """Its world may be back tomorrow."""
    held = json.loads((finished_run / "config.json").read_text())
    (workplace / "run").mkdir()
    (workplace / "run" / "config.json").write_text(json.dumps({**held, "env": "pettingzoo:worlds_of_mine:broken"}))
    with pytest.raises(RuntimeError, match="a wheel came off"):
        shoal("train", "--resume", "run")
    assert read_config(Path("run")).batch == 32


# ---- streams and places that are not there -------------------------------------------------------------------------


def test_standard_output_is_closed(process, finished_run):
    for line in ("shoal --help >&-", f"shoal evaluate {finished_run} --episodes 2 >&-"):
        result = process(line)
        assert result.returncode == 2
        assert result.stderr == "shoal: The output could not be written: standard output is closed.\n"


def test_standard_error_is_closed(process, tmp_path):
    words = shlex.join([*SHORT, "--json", "--out", str(tmp_path / "run")])
    result = process(f"shoal train {words} 2>&-")
    assert result.returncode == 0 and strict(result.stdout)["finished"]
    assert len(lines(tmp_path / "run")) >= 5  # nobody wrote into files that took the place of the closed stream


def test_a_mistake_with_standard_error_closed(process):
    result = process("shoal fly 2>&-")
    assert (result.returncode, result.stdout) == (2, "")


def test_a_terminal_that_knows_only_ascii(shoal, process, finished_run, monkeypatch):
    result = process("shoal train --resume nöwhere", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert result.returncode == 2 and one_sentence(result.stderr) == "shoal: There is no run folder 'n?where'.\n"
    with io.TextIOWrapper(io.BytesIO(), encoding="ascii") as narrow, contextlib.redirect_stdout(narrow):
        assert main(["evaluate", str(finished_run), "--episodes", "2"]) == 0
        assert b"+-----" in narrow.buffer.getvalue() and b"??" not in narrow.buffer.getvalue()


def test_a_narrow_terminal_loses_no_digit(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr("shoal.console._out", sys.stdout)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    print_rows("", [{"team": "a", "return per agent": "-123456.5", "interval": "-123456.7 to -123456.3"}])
    digits = re.sub(r"\x1b\[[0-9;]*m|[^0-9]", "", capsys.readouterr().out)
    assert sorted(digits) == sorted("123456512345671234563")


class Gone(io.StringIO):
    """A terminal that went away."""

    def write(self, text):
        raise BrokenPipeError


def test_a_world_that_prints_to_a_terminal_that_went_away(workplace, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", Gone())
    words = [word for word in QUIET if word != "--quiet"]
    assert main(["train", *words, "--env", "pettingzoo:worlds_of_mine:talker", "--json", "--out", "run"]) == 0
    assert strict(capsys.readouterr().out)["finished"]


def test_the_working_directory_is_gone(shoal, process, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    result = process(f"cd {gone} && rmdir {gone} && shoal --version")
    assert result.returncode == 0 and result.stderr == ""
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    code, _, err = shoal("train", *QUIET)
    assert code == 2 and "cannot be written" in one_sentence(err)
    assert shoal("train", *QUIET, "--out", tmp_path / "run")[0] == 0


def test_compiled_loops_find_a_place(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    nowhere = tmp_path / "file" / "below"  # where not even root can write
    monkeypatch.setattr(processes.tempfile, "gettempdir", lambda: str(tmp_path))

    def place(*places):
        monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
        monkeypatch.setattr(processes, "numba_places", lambda: places)
        processes.prepare()
        return os.environ.get("NUMBA_CACHE_DIR")

    chosen = place(nowhere, nowhere)
    assert chosen is not None and processes.writable(Path(chosen)) and tmp_path in Path(chosen).parents
    Path(chosen).chmod(0o777)  # anybody could put code there
    assert (other := place(nowhere, nowhere)) != chosen and processes.writable(Path(other))
    assert place(tmp_path / "code", nowhere) is None
    assert place(nowhere, tmp_path / "home") is None
    monkeypatch.setenv("NUMBA_CACHE_DIR", "mine")
    monkeypatch.setattr(processes, "numba_places", lambda: (nowhere, nowhere))
    processes.prepare()
    assert os.environ["NUMBA_CACHE_DIR"] == "mine"


def test_where_numba_keeps_compiled_loops(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    assert processes.numba_places()[1] == Path("/nonexistent/.cache/numba")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert processes.numba_places()[1] == Path("/cache/numba")
