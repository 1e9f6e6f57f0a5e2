"""The parser's complaints in plain words, and phrases that must not come back."""

import re
from pathlib import Path

import pytest

from tests.cli.helpers import one_sentence


@pytest.mark.parametrize("columns", ["20", "200"])
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("train --seed 1e3", "--seed '1e3' is not a whole number"),
        ("train --tau x", "--tau 'x' is not a number"),
        ("train --agents 2.5", "--agents '2.5' is not a whole number or None"),
        ("train --target-entropy x", "--target-entropy 'x' is not a number or None"),
        ("train --hidden 8,x", "--hidden '8', 'x' is not a list of whole numbers such as 64,32 or 64 32"),
        ("train --rules chess", "--rules 'chess' is not one of 'mpe2', 'openai'"),
        ("train --tau", "--tau needs a value"),
        ("train --jsno", "Unrecognized options: --jsno; perhaps you meant --json"),
        ("train --agnets 3 --foo", "Unrecognized options: --agnets, --foo; perhaps you meant --agents"),
        ("train --episode 5", "Unrecognized options: --episode; perhaps you meant --episodes"),
        ("train --learning_rat 1", "Unrecognized options: --learning_rat; perhaps you meant --learning-rate"),
        ("train --batchsize 8", "Unrecognized options: --batchsize; perhaps you meant --batch"),
        ("train --total_timesteps 9", "Unrecognized options: --total_timesteps; perhaps you meant --episodes"),
        ("train --algo masac", "Unrecognized options: --algo; perhaps you meant --algorithm"),
        ("train --hidden-sizes 8", "Unrecognized options: --hidden-sizes; perhaps you meant --hidden"),
        ("train -n 3", "Unrecognized options: -n (shoal"),
        ("train agents=3", "Unrecognized options: agents=3; perhaps you meant --agents"),
        ("train --lr x", "--learning-rate 'x' is not a number or None"),
        ("train --batch_size=x", "--batch 'x' is not a whole number or None"),
        ("evaluate", "POLICY is missing: Run folder, Stable-Baselines3 zip"),
        ("evaluate --n-eval-episodes 3 x", "Unrecognized options: --n-eval-episodes; perhaps you meant --episodes"),
        ("mac sweep --units x", "Unrecognized options: --units (shoal mac sweep"),
        ("mac train --lr 1", "Unrecognized options: --lr; perhaps you meant --learning-rate (shoal mac train"),
        ("train --rules mpe", "--rules 'mpe' is not one of 'mpe2', 'openai'; perhaps you meant mpe2"),
    ],
)
def test_parser_errors_are_plain_sentences(shoal, monkeypatch, columns, words, sentence):
    monkeypatch.setenv("COLUMNS", columns)
    code, out, err = shoal(*words.split())
    assert code == 2 and out == "" and one_sentence(err).startswith(f"shoal: {sentence}")
    command = re.match("(mac )?[a-z]+", words)[0]
    assert err.endswith(f" (shoal {command} --help lists all options).\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("bench", "A bench must be named: env, workers, "),
        ("bench updates", "The bench 'updates' is not known (perhaps you meant update); choose one of: env, "),
        ("bench env --agents 0,3", "--agents is 0,3, but each must be from 1 to 1024."),
        ("study qatt", "The study 'qatt' is not known (perhaps you meant qat); choose one of: breakdown, "),
        ("mac descrbe", "There is no command 'mac descrbe' (perhaps you meant describe); the commands are describe, "),
    ],
)
def test_misspelt_names(shoal, words, sentence):
    code, out, err = shoal(*words.split())
    assert code == 2 and out == "" and one_sentence(err).startswith(f"shoal: {sentence}")


def test_singular_and_plural(shoal, finished_run, tmp_path):
    words = ["--episodes", "1", "--copies", "1", "--evaluate-episodes", "0", "--no-tensorboard", "--threads", "1"]
    code, out, err = shoal("train", *words, "--out", tmp_path / "run")
    assert code == 0 and "1 episode, 25 steps and 0 updates in" in out and ", 1 episode, into" in err
    code, out, _ = shoal("evaluate", finished_run, "--episodes", "1")
    assert code == 0 and "Return of an episode in cooperative-navigation, 1 episode each" in out


@pytest.mark.parametrize("command", ["evaluate", "watch"])
@pytest.mark.parametrize("seed", ["-1", str(2**70)])
def test_seeds_out_of_range(shoal, finished_run, command, seed):
    code, _, err = shoal(command, finished_run, "--seed", seed)
    assert code == 2 and f"--seed is {seed}, but must be from 0 to" in one_sentence(err)


ROOT = Path(__file__).parents[2]
FORMER = re.compile(
    r"to the same bits|\b(scale|file|range|network|mini-batch) an? (agent|output|layer|tensor|state|row)\b|\bstranger"
    r"|commas between|\bsomebody('s| else)|from the next run on|'s to mend|\bmend it\b|decides everything"
    r"|cannot be told|signs of life|those that there are|takes from the other|what must be said of",
    re.IGNORECASE,
)


def test_discouraged_phrases_do_not_occur():
    """Phrases that a native reader stopped at; the field's terms have replaced them."""
    found = []
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("shoal/**/*.py")]):
        text = re.sub(r"\s+", " ", path.read_text())
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in FORMER.finditer(text)]
    assert not found
