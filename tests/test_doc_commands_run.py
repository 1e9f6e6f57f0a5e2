"""Every command in the documents and help texts runs in an environment with the extras that its text names, no others.

The commands of a page run in their order and in one folder, so that what one makes is there for the next. They are as
written, with options behind them that cut their sizes; benches and studies, which may take longer all the same, are
interrupted after half a minute.
"""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib

import pytest

from tests.doc_blocks import run_blocks
from tests.doc_commands import ROOT, all_commands

PATIENCE, LONGEST = 30, 600  # seconds: then a bench or study is interrupted; nothing else may take longer
NOT_RUN = {
    "10.0.0.1": "an address of the reader's",
    "breakout.zip": "a model that the reader brings",
    "fashion-mnist": "data of a Debian package",
    "cuda": "a GPU",
    "bench all": "each bench is run by itself",
}
SMALL = "--episodes 40 --episode-length 25 --warmup 200 --batch 32 --evaluate-episodes 2".split()
CUTS = {
    "evaluate": ["--episodes", "3"],
    "quantize": ["--episodes", "3"],
    "profile": "--seconds 0.2 --ring 5000 --agents 3,6".split(),
    "mac train": "--epochs 1 --train-images 128 --test-images 64".split(),
}
MODELS = """
import numpy, stable_baselines3
for name, env in {"ppo": "CartPole-v1", "a2c": "CartPole-v1", "dqn": "CartPole-v1", "ddpg": "Pendulum-v1",
                  "td3": "Pendulum-v1", "sac": "Pendulum-v1"}.items():
    getattr(stable_baselines3, name.upper())("MlpPolicy", env, policy_kwargs={"net_arch": [16]}).save(name)
numpy.savez("vecnormalize.npz", mean=numpy.zeros(3), var=numpy.ones(3))
"""

pytestmark = pytest.mark.slow


def complete(command):
    """Whether a command can be run as it stands: a sentence may leave out what it is about."""
    words = command.words
    words = words[words[0] == "mac" :]
    begun = len(words) > 2 and not (words[0] in ("evaluate", "watch", "quantize", "export") and words[1][0] == "-")
    return command.shown or (begun and "…" not in words)


BY_DOCUMENT = {
    document: [command for command in dict.fromkeys(commands) if complete(command)]
    for document, commands in itertools.groupby(all_commands(), lambda command: command.document)
    if document != "docs/extending.md"  # names parts that the reader is about to add
}


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    """A function that gives the Python of an environment with Shoal and these extras; each is made once.

    The environments with extras see the packages of the plain one.
    """
    folder, made = tmp_path_factory.mktemp("environments"), {}
    extras_of = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    def make(extras, plain=None):
        home = folder / "-".join(["shoal", *sorted(extras)])
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        if plain is not None:
            (packages,) = home.glob("lib/python*/site-packages")
            (seen,) = plain.parents[1].glob("lib/python*/site-packages")
            (packages / "plain.pth").write_text(f"import site; site.addsitedir({str(seen)!r})\n")
        what = [one for extra in sorted(extras) for one in extras_of[extra]] if extras else ["-e", str(ROOT)]
        install = "-m pip install --quiet --disable-pip-version-check -c constraints.txt".split()
        subprocess.run([home / "bin" / "python", *install, *what], check=True, cwd=ROOT)
        return home / "bin" / "python"

    def of(extras):
        for wanted in (frozenset(), frozenset(extras)):
            if wanted not in made:
                made[wanted] = make(wanted, made.get(frozenset()))
        return made[frozenset(extras)]

    return of


def run(python, words, folder):
    """Run a command; a bench or study is interrupted when it takes long."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "COLUMNS")}
    process = subprocess.Popen(
        [python, "-P", "-m", "shoal", *words], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        return process.communicate(timeout=PATIENCE if words[0] in ("bench", "study") else LONGEST)[1], process.wait()
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=LONGEST)[1]
        assert words[0] in ("bench", "study"), f"longer than {LONGEST} s: {err}"
        return err, 0 if process.returncode == 130 else process.returncode
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def cut(words, folder):
    """The same command with smaller sizes."""
    if words[0] == "train":
        if "--resume" in words:
            return [*words, "--episodes", "60"] if "--episodes" in words else words
        each = "--evaluate-every 20 --evaluate-during 2".split() if "--evaluate-every" in words else []
        return [*words, *SMALL, *each]
    if words[:2] == ["mac", "train"] and "--resume" not in words:
        return words + CUTS["mac train"]
    if words[:2] == ["mac", "sweep"] and "--train" in words:
        return [*words, "--epochs", "1"]
    if words[0] == "simulate" and "--measure" in words:
        return [*words, "--seconds", "0.5"]
    if words[0] == "study" and not {"--list", "--data"} & set(words):
        return [*words, "--budget", "0"] if "--cells" in words else [*words, "--quick", "--budget", "0.5"]
    if "--checkpoint" in words and words[words.index("--checkpoint") + 1].isdigit():
        snapshot = min((folder / words[1] / "snapshots").iterdir())
        return [*words, "--checkpoint", str(int(snapshot.stem))]
    return words + CUTS.get(words[0], [])


@pytest.fixture(scope="session")
def belongings(python, tmp_path_factory):
    """What the documents take for granted: a run and its export, models of Stable-Baselines3, the file of a sweep."""
    folder = tmp_path_factory.mktemp("belongings")
    hunt = "train --env predator-prey --agents 6 --evaluate-every 20 --evaluate-during 2 --out runs/hunt".split()
    export = "export runs/hunt --precision int8 --out hunt.onnx".split()
    for words in ([*hunt, *SMALL], export):
        err, code = run(python([]), words, folder)
        assert code == 0, err
    shutil.copy(folder / "hunt.onnx", folder / "policy.onnx")
    subprocess.run([python(["sb3"]), "-c", MODELS], check=True, cwd=folder)
    text = (ROOT / "docs" / "sweep.md").read_text()
    sweep = json.loads(re.search(r'```json title="sweep.json"\n(.*?)```', text, re.S)[1])
    sweep["base"] |= {"episodes": 40, "warmup": 200, "batch": 32, "evaluate_episodes": 2}
    (folder / "sweep.json").write_text(json.dumps(sweep))
    return folder


def bring(document, commands, belongings, folder):
    """Put what the page takes for granted into its folder, and the files that it shows."""
    for path in belongings.rglob("*"):
        name = str(path.relative_to(belongings))
        named = any(name in command.words for command in commands)
        made = any(
            name in command.words[command.words.index("--out") :] for command in commands if "--out" in command.words
        )
        if named and not made:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if path.is_dir() else shutil.copy)(path, folder / name)
    if any("papers/cells" in command.words for command in commands):
        shutil.copytree(ROOT / "papers" / "cells", folder / "papers" / "cells")
    if document.endswith(".md"):
        for name, code in re.findall(r'```python title="(.*?)"\n(.*?)```', (ROOT / document).read_text(), re.S):
            (folder / name).write_text(code)


@pytest.mark.parametrize("document", BY_DOCUMENT)
def test_documented_commands_run(document, python, belongings, tmp_path):
    commands, wrong = BY_DOCUMENT[document], []
    bring(document, commands, belongings, tmp_path)
    for command in commands:
        if not any(part in command.text for part in NOT_RUN):
            words = cut(command.words, tmp_path)
            err, code = run(python(command.extras), words, tmp_path)
            if code:
                wrong.append(f"{command.text} [{', '.join(sorted(command.extras))}]: {err[-1000:]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("document", ["README.md", "docs/getting-started.md"])
def test_the_first_lines_of_python_run(document, tmp_path, monkeypatch):
    """Those that train; the README's others need a run, a model or data of the reader's."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.S)
    run_blocks([("", code) for code in blocks if "import TrainConfig" in code])
