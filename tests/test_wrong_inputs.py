"""Every wrong input ends in one clear sentence and exit code 2, and nothing is lost or half-written."""

import contextlib
import fcntl
import json
import os
import pty
import resource
import subprocess
import sys
import time
import zipfile

import pytest

from shoal import TrainConfig, train
from shoal.cli import main

SHORT = "--episodes 20 --warmup 100 --batch 32 --hidden 8 --evaluate-episodes 4 --no-tensorboard --quiet".split()

# the words after `shoal`, and what the sentence must say
WRONG = [
    ("", "shoal train"),
    ("fly", "There is no command 'fly'; the commands are train"),
    ("evalute", "There is no command 'evalute' (perhaps you meant evaluate); the commands are train"),
    ("train --env cooperative-navigatoin", "'cooperative-navigatoin' is not known"),
    ("train --env predatorprey", "predator-prey"),
    ("train --env ''", "''"),
    ("train --agents 0", "agents is 0"),
    ("train --agents -3", "-3"),
    ("train --agents 100000", "agents is 100000"),
    ("train --share bogus", "--share 'bogus' is not one of 'actors', 'all', 'critics', 'none' ("),
    ("train --agents three", "--agents 'three' is not"),
    ("train --agents 2.5", "--agents '2.5' is not"),
    ("train --agnets 3", "--agnets"),
    ("train --copies 0", "--copies is 0"),
    ("train --rules chess", "'chess'"),
    ("train --episodes 0", "--episodes is 0"),
    ("train --episodes -5", "-5"),
    ("train --episode-length 0", "--episode-length is 0"),
    ("train --batch 0", "--batch is 0"),
    ("train --batch 16000000 --agents 48", "memory"),
    ("train --tau 2", "--tau is 2.0"),
    ("train --discount nan", "--discount is nan"),
    ("train --hidden 0", "--hidden is 0, but needs"),
    ("train --hidden", "--hidden"),
    ("train --hidden 100000000", "memory"),
    ("train --learning-rate -1", "--learning-rate is -1.0"),
    ("train --learning-rate fast", "fast"),
    ("train --sampler lottery", "'lottery'"),
    ("train --sampler neighbor --neighbors 0", "--neighbors is 0"),
    ("train --minibatch both", "'both'"),
    ("train --storage int4", "'int4'"),
    ("train --capacity 10", "capacity is 10"),
    ("train --agents 48 --episodes 10000000 --capacity 100000000", "largest capacity that fits is"),
    ("train --warmup 0", "--warmup is 0"),
    ("train --update-every 0", "--update-every is 0"),
    ("train --algorithm ppo", "'ppo'"),
    ("train --entropy -1 --algorithm masac", "--entropy is -1.0"),
    ("train --clip -1", "--clip is -1.0"),
    ("train --clip inf", "--clip is inf"),
    ("train --algorithm masac --learn-entropy --target-entropy 2", "largest possible is 1.609"),
    ("train --sampler neighbor --capacity 30", "neighbor"),
    ("train --device meta", "--device 'meta'"),
    ("train --device gpu", "--device 'gpu'"),
    ("train --device cuda:9", "--device 'cuda:9'"),
    ("train --seed -1", "-1"),
    ("train --threads 0", "--threads is 0"),
    ("train --threads 4097", "--threads is 4097, but this process may use"),
    ("profile --threads 4097", "--threads is 4097, but this process may use"),
    ("train --log-every 0", "--log-every is 0"),
    ("train --evaluate-every -1", "--evaluate-every is -1"),
    ("train --evaluate-every 5 --evaluate-during 0", "--evaluate-during is 0"),
    ("train --evaluate-during 5", "--evaluate-during is for evaluations during training, but --evaluate-every is 0"),
    ("train --stop-at-return -5", "--stop-at-return is for evaluations during training"),
    ("train --evaluate-every 5 --stop-at-return nan", "--stop-at-return is nan"),
    ("train --snapshots -1", "--snapshots is -1"),
    ("train --landmarks 0", "landmarks is 0"),
    ("train --env predator-prey --landmarks 3", "landmarks"),
    ("train --prey learned", "prey"),
    ("train --env predator-prey --prey-count 0", "--prey-count is 0"),
    ("train --env predator-prey --obstacles -1", "obstacles"),
    ("train --env predator-prey --prey wolf", "'wolf'"),
    ("train --env predator-prey --prey facmac --prey-scale 3", "--prey-scale"),
    ("train --env-options {", "--env-options is not JSON"),
    ("train --env-options [1]", "--env-options must be a JSON object"),
    ('train --env-options {"N":3}', "options"),
    ("train --env pettingzoo:no.such_module", "no.such_module"),
    ("train --env pettingzoo:json", "json"),
    ("train --env pettingzoo:butterfly.pistonball_v6", "pip install 'pettingzoo[butterfly]'."),
    ("train --env gym:ALE/Pong-v5 --copies 1", "training on images is not supported: train Atari games on"),
    (r"train --env a\nb\x1b[31m", r"The world 'a\nb\x1b[31m' is not known"),
    (r"fly\naway", r"There is no command 'fly\naway'"),
    (r"evaluate no\nwhere", r"There is no run folder, Stable-Baselines3 zip or ONNX file 'no\nwhere'"),
    ("train --env pettingzoo:mpe2.simple_spread_v3 --agents 5", "agents"),
    ('train --env pettingzoo:mpe2.simple_spread_v3 --env-options {"wings":2}', "wings"),
    ("train --env gym:NoSuchEnv-v9", "NoSuchEnv"),
    ("train --env gym:", "gym:"),
    ("train --env gym:Taxi-v3 --rules openai", "rules"),
    ("train --env gym:json:Nothing", "the module json has no class or function Nothing."),
    ("train --env gym:CartPole-v1 --agents 2", "agents"),
    ("train --resume", "--resume needs a run folder"),
    ("train --resume nowhere", "There is no run folder 'nowhere'"),
    ("train --resume {tmp}", "is not a run folder"),
    ("train --resume {corrupt}", "cannot be read"),
    ("train --resume {foreign}", "unknown setting 'wings'"),
    ("train --resume {list}", "does not hold a JSON object"),
    ("train --resume {wrong_type}", "--batch is 'many'"),
    ("train --out {run}", "already holds a run"),
    ("train --out {file}", "is a file"),
    ("train --out {file}/below", "cannot be written"),
    ("train --out /proc/nowhere/run", "cannot be written"),
    ("train --out ''", "--out is empty"),
    ("evaluate", "POLICY is missing"),
    ("evaluate nowhere", "There is no run folder, Stable-Baselines3 zip or ONNX file 'nowhere'"),
    ("evaluate {empty_run}", "has no checkpoint yet"),
    ("evaluate {run} --episodes 0", "--episodes is 0"),
    ("evaluate {run} --seed -1", "-1"),
    ("evaluate {damaged}", "checkpoint"),
    ("evaluate {resized}", "config.json' is damaged: agents is 4 instead of null; restore what"),
    ("evaluate {relayered}", "config.json' is damaged: hidden is [8, 8] instead of [8]; restore what"),
    ("train --resume {relayered}", "config.json' is damaged: hidden is [8, 8] instead of [8]; restore what"),
    ("train --resume {stranger}", "names the environment 'gym:no_such_module:World-v0', which is third-party code"),
    ("evaluate {zip}", "is not a Stable-Baselines3 model: it has no 'policy.pth'"),
    ("evaluate --episodes 2 {zip}", "is not a Stable-Baselines3 model: it has no 'policy.pth'"),
    ("evaluate nowhere.zip", "There is no run folder, Stable-Baselines3 zip or ONNX file 'nowhere.zip'"),
    ("watch {zip}", "is a file, but must be a run folder"),
    ("watch nowhere", "There is no run folder 'nowhere'"),
    ("watch {empty_run}", "has no checkpoint yet"),
    ("watch {run} --seed x", "x"),
    ("bench", "A bench must be named: env, "),
    ("bench everything", "'everything'"),
    ("bench update --agents 0", "from 1 to 1024"),
    ("bench update --agents three", "whole numbers"),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Folders and files to go wrong with."""
    tmp = tmp_path_factory.mktemp("places")
    train(
        TrainConfig(
            episodes=20, warmup=100, batch=32, hidden=(8,), evaluate_episodes=4, tensorboard=False, out=str(tmp / "run")
        )
    )
    config = json.loads((tmp / "run" / "config.json").read_text())

    def folder(name, text):
        (tmp / name).mkdir()
        (tmp / name / "config.json").write_text(text)

    def changed(name, **settings):
        subprocess.run(["cp", "-r", tmp / "run", tmp / name], check=True)
        (tmp / name / "config.json").write_text(json.dumps({**config, **settings}))

    folder("empty_run", json.dumps(config))
    folder("corrupt", '{"env": "coop')
    folder("foreign", json.dumps({**config, "wings": 2}))
    folder("list", "[]")
    folder("wrong_type", json.dumps({**config, "batch": "many"}))
    changed("resized", agents=4)
    changed("relayered", hidden=[8, 8])
    changed("damaged")
    for path in (tmp / "damaged" / "checkpoints").glob("0*/weights.safetensors"):
        path.write_bytes(path.read_bytes()[:-7])
    folder("stranger", TrainConfig(env="gym:no_such_module:World-v0").to_json())
    (tmp / "file").write_text("not a folder")
    with zipfile.ZipFile(tmp / "zip", "w") as archive:
        archive.writestr("data", "{}")
    return {path.name: str(path) for path in tmp.iterdir()}


def words_of(text, places, tmp_path):
    for name, path in {**places, "tmp": str(tmp_path)}.items():
        text = text.replace(f"{{{name}}}", path)
    return [word.replace(r"\n", "\n").replace(r"\x1b", "\x1b") if word != "''" else "" for word in text.split()]


@pytest.mark.parametrize(("text", "expected"), WRONG, ids=[text or "nothing" for text, _ in WRONG])
def test_wrong_input_is_one_sentence(text, expected, places, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words_of(text, places, tmp_path)) == 2
    out, err = capsys.readouterr()
    if text:
        assert out == ""
        assert err.startswith("shoal: ") and err.endswith(".\n") and len(err.splitlines()) == 1, err
    assert expected in (err or out)
    assert os.listdir(tmp_path) == []  # nothing half-written


def shoal(*words, **options):
    code = "import sys; from shoal.cli import main; sys.exit(main())"
    return subprocess.Popen([sys.executable, "-c", code, *map(str, words)], **options)


def test_full_disk_keeps_the_checkpoint_before(tmp_path, capsys):
    """The disk refuses a file that grows too large: one sentence, exit code 2, and what was saved stays whole."""
    run = tmp_path / "run"
    arguments = [*SHORT, "--episodes", "4000", "--log-every", "1", "--checkpoint-every", "5", "--out", str(run)]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (250_000, limits[1]))
    try:
        assert main(["train", *arguments]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and "File too large" in said and str(run) in said
    assert main(["evaluate", str(run), "--episodes", "2"]) == 0


def test_closed_output_pipe(places, capsys):
    sentence = "shoal: The output could not be written: No space left on device.\n"
    with open("/dev/full", "w") as full:
        process = shoal("--help", stdout=full, stderr=subprocess.PIPE, text=True)
        assert (process.communicate(timeout=120)[1], process.returncode) == (sentence, 2)
    with open("/dev/full", "w") as full, contextlib.redirect_stdout(full):
        assert main(["evaluate", places["run"], "--episodes", "2", "--json"]) == 2
    assert capsys.readouterr().err == sentence


def test_closed_terminal_does_not_end_the_run(tmp_path):
    """Without a hang-up signal, as under nohup: the progress bar has nowhere to go, the run goes on and is finished."""
    ours, theirs = pty.openpty()
    words = [word for word in SHORT if word != "--quiet"]
    process = shoal(
        "train", *words, "--episodes", "200", "--out", tmp_path / "run", stdout=theirs, stderr=theirs, stdin=theirs
    )
    os.close(theirs)
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.close(ours)
    process.wait(timeout=120)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["finished"]


def test_second_process_on_a_run_is_refused(places, capsys):
    lock = os.open(places["empty_run"], os.O_RDONLY)  # a lock belongs to the opened file, not to the process
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["train", "--resume", places["empty_run"]]) == 2
    finally:
        os.close(lock)
    assert "is being trained by another process" in capsys.readouterr().err


def test_python_api_checks_settings():
    from shoal.errors import UserError

    for settings in ({"batch": "many"}, {"agents": 2.5}, {"stagger": "yes"}, {"algorithm": "ppo"}, {"hidden": ()}):
        with pytest.raises(UserError):
            train(TrainConfig(**settings))
