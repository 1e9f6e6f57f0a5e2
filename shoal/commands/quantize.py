"""`shoal quantize`."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from shoal.arguments import parse, words
from shoal.console import ended, output_folder, print_files, print_json, print_rows, progress_bar, say, write_json
from shoal.errors import UserError, check_choice, check_range, counted

if TYPE_CHECKING:
    from shoal.training.subjects import ModelSubject, TeamSubject
    from shoal.training.widths import Precision

FULL = ("32", "float32", "fp32")


def quantize(argv: list[str]) -> int:
    """How few bits a trained policy needs: returns, equal actions and bytes of a run or a Stable-Baselines3 zip.

    shoal quantize runs/hunt
    shoal quantize ppo_cartpole.zip --env CartPole-v1 --bits 32,8,4,2 --episodes 100
    shoal quantize ddpg.zip --env Pendulum-v1 --normaliser vecnormalize.npz --bits 8,fp16,E4M3 --what both --json
    """
    import tyro

    @dataclass(frozen=True)
    class QuantizeCommand:
        policy: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN-OR-ZIP")]
        """Run folder, or a zip that Stable-Baselines3 saved (A2C, PPO, DQN, DDPG)."""
        env: str = ""
        """Environment to play in; none: the run's own. A zip needs one, e.g. CartPole-v1."""
        bits: str = "32,16,8,6,5,4,3,2"
        """Widths with commas between: 2 to 16 bits, 32 for float32; also fp16, bf16 and formats such as E4M3, Q4.4."""
        what: str = "weights,both"
        """What is quantized: weights, activations, both; several with commas between."""
        style: Literal["standard", "paper"] = "standard"
        """standard: integer codes, clamped, one scale an output; paper: round(W / d) with d over 2^n, not clamped."""
        per_tensor: bool = False
        """Standard style: one scale a layer instead of one an output."""
        asymmetric: bool = False
        """Standard style: weights with a zero point."""
        edge_bits: str = ""
        """Another width for the first and the last layer; none: the same."""
        dynamic: bool = False
        """Ranges of activations from each state as it comes, instead of from states of the full-precision policy."""
        episodes: int = 100
        """Episodes of each row; all rows play the same ones."""
        seed: int = 1
        """Decides the starts of the episodes."""
        normaliser: str = ""
        """A zip's observation normaliser (VecNormalize) as .npz or .safetensors; as .pkl only with --trust."""
        trust: bool = False
        """Let third-party code run: let Stable-Baselines3 load the zip itself (custom classes need that), or let a run
        play in the environment that it names (gym:MODULE:ID, pettingzoo:MODULE)."""
        out: str = "quantize"
        """Folder for the pictures and quantize.json."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(QuantizeCommand, quantize, argv)
    check_range("--seed", command.seed, 0, 2**62)
    check_range("--episodes", command.episodes, 1, 10**7)
    from shoal.training.run_folder import finite
    from shoal.training.widths import WHAT, Sweep, plays, sweep

    options = command.style, not command.asymmetric, command.per_tensor
    precisions = tuple(precision_of(word, "--bits", *options) for word in words(command.bits))
    what: tuple[Any, ...] = words(command.what)
    for word in what:
        check_choice("--what", word, list(WHAT))
    if not precisions or not what:
        raise UserError("--bits and --what must name at least one width and one kind, e.g. --bits 8,4 --what both.")
    edges = precision_of(command.edge_bits, "--edge-bits", *options) if command.edge_bits else None
    wanted = Sweep(
        tuple(dict.fromkeys(precisions)), tuple(dict.fromkeys(what)), edges, command.dynamic, command.episodes,
        command.seed,
    )  # fmt: skip
    subject = subject_of(command.policy, command.env, command.normaliser, command.trust)
    folder = output_folder(command.out)
    with progress_bar("shoal quantize", plays(subject, wanted)) as advance:
        found = finite(sweep(subject, wanted, advance).to_dict() | {"style": command.style})
    write_json(found, folder / "quantize.json")
    from shoal.report.widths import draw_weights, draw_widths

    pictures = [draw_widths(found, folder / "quantize.png"), draw_weights(found, folder / "weights.png")]
    if command.json:
        print_json(found | {"pictures": [str(path) for path in pictures]})
        return ended(found)
    print_rows(
        f"{command.policy} in {subject.env}, {counted(command.episodes, 'episode')} each",
        list(map(shown_row, found["rows"])),
    )
    print_files(folder, pictures)
    for sentence in found["failed"]:
        say(sentence)
    return ended(found)


def precision_of(word: str, option: str, style: Any, symmetric: bool, per_tensor: bool) -> "Precision":
    """The precision that a word names; the paper's style has one scale a layer, but one a channel in convolutions."""
    from shoal.quantization.affine import LEAST_BITS, MOST_BITS, Scheme
    from shoal.training.widths import Precision

    if word in FULL:
        return Precision("float32", None)
    per_channel = None if style == "paper" else not per_tensor
    if re.fullmatch(r"-?[0-9]{1,9}", word):
        if not LEAST_BITS <= int(word) <= MOST_BITS:
            raise UserError(f"{option} is {word}, but must be from {LEAST_BITS} to {MOST_BITS}, or 32 for float32.")
        scheme = Scheme(int(word), style, symmetric, per_channel)
    else:
        try:
            scheme = Scheme(style=style, format=word)
        except UserError as error:
            raise UserError(f"{option} '{word}' is neither a number of bits nor a number format: {error}") from None
    return Precision(scheme.label, scheme)


def run_or_zip(policy: str) -> Path:
    """The path of a run folder or a zip, if there is anything."""
    if not os.path.exists(policy):  # which is also False for names that no file could have
        raise UserError(f"There is no run folder and no zip '{policy}'.")
    return Path(policy)


def subject_of(policy: str, env: str, normaliser: str, trust: bool) -> "TeamSubject | ModelSubject":
    """The run or the zip of this name, with its environment; whatever is wrong with them is found here."""
    from shoal.quantization.normaliser import read_normaliser
    from shoal.quantization.stable_baselines import read_zip
    from shoal.training.subjects import model_subject, team_subject

    path = run_or_zip(policy)
    if path.is_dir():
        if normaliser:
            raise UserError(f"--normaliser is for zips, but '{policy}' is a run.")
        return team_subject(path, env, say, trust)
    model = read_zip(path, trust, read_normaliser(Path(normaliser), trust) if normaliser else None)
    for note in model.notes:
        say(note)
    return model_subject(model, env)


def shown_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row as a person reads it."""
    mean, half = row["return_mean"], row["return_ci95"]
    error = row["relative_error"]
    return {
        "precision": row["precision"],
        "quantized": row["what"],
        "return": mean,
        "95 % interval": "–" if half is None else f"{mean - half:,.1f} to {mean + half:,.1f}",
        "relative error": "–" if error is None else f"{error:+z.1%}",
        "equal actions": f"{row['equal_actions']:.1%}",
        "KL": row["kl"],
        "bytes": row["bytes"],
    }
