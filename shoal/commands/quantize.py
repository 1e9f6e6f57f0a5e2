"""`shoal quantize`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shoal.commands.arguments import parse
from shoal.commands.console import ended, give_outcome, progress_bar, result_folder, warn_of_replacing, write_json
from shoal.errors import UserError, check_choice, check_range
from shoal.system.streams import say


def quantize(argv: list[str]) -> int:
    """How few bits a trained policy needs: returns, equal actions and bytes over bit widths.

    shoal quantize runs/hunt
    shoal quantize runs/hunt --checkpoint best --bits 8,4
    shoal quantize ppo.zip --env CartPole-v1 --bits 32,8,4,2 --episodes 100
    shoal quantize dqn.zip --env CartPole-v1 --bits 8,4 --what weights --rounding output-error
    shoal quantize ddpg.zip --env Pendulum-v1 --normaliser vecnormalize.npz --bits 8,fp16,E4M3 --what both --json
    """
    from shoal.commands.policy_arguments import PolicyArguments

    @dataclass(frozen=True)
    class QuantizeCommand(PolicyArguments):
        bits: tuple[str, ...] = ("32", "16", "8", "6", "5", "4", "3", "2")
        """Comma-separated bit widths: 2 to 16, or 32 for float32; also fp16, bf16 and formats such as E4M3, Q4.4."""
        what: tuple[str, ...] = ("weights", "both")
        """What is quantized, comma-separated: weights, activations, both."""
        style: Literal["standard", "paper"] = "standard"
        """standard: clamped integer codes, one scale per output channel; paper: round(W / d) with d over 2^n, not
        clamped."""
        per_tensor: bool = False
        """Standard style: one scale per layer instead of one per output channel."""
        asymmetric: bool = False
        """Standard style: asymmetric weights, with a zero point."""
        edge_bits: str = ""
        """Bit width of the first and the last layer; empty: the same as the others."""
        dynamic: bool = False
        """Dynamic ranges of activations, from each state, instead of ranges calibrated in full precision."""
        correct_bias: bool = True
        """A further row for every width below 16 bits: biases moved so that mean pre-activations over visited states
        stay those of full precision."""
        rounding: Literal["nearest", "output-error"] = "nearest"
        """output-error: a further row for every width, its weights rounded so that the layers' outputs over visited
        states stay close."""
        episodes: int = 100
        """Episodes per row; all rows play the same ones."""
        seed: int = 1
        """Random seed of the initial states."""
        out: str | None = None
        """Folder for the pictures and quantize.json; None: a new one under runs/."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(QuantizeCommand, quantize, argv)
    check_range("seed", command.seed, 0, 2**62)
    check_range("episodes", command.episodes, 1, 10**7)
    from shoal.policies.trained import check_loadable
    from shoal.quantization.quantizer import WHAT, named_width

    options = command.style, not command.asymmetric, command.per_tensor
    widths = tuple(named_width(word, *options) for word in command.bits)
    what: tuple[Any, ...] = command.what
    for word in what:
        check_choice("what", word, list(WHAT))
    if not widths or not what:
        raise UserError("--bits and --what must name at least one width and one kind, e.g. --bits 8,4 --what both.")
    edges = named_width(command.edge_bits, *options, name="edge_bits") if command.edge_bits else None
    check_loadable(command.policy, command.checkpoint)

    with progress_bar("shoal quantize") as progress:
        progress(0, "loading")
        from shoal.policies.quantize import WidthSweep, chosen_corrections, plays, sweep, width_result
        from shoal.report.panels import draw_figures

        wanted = WidthSweep(
            tuple(dict.fromkeys(widths)), tuple(dict.fromkeys(what)), edges, command.dynamic, command.episodes,
            command.seed, corrections=chosen_corrections(command.correct_bias, command.rounding),
        )  # fmt: skip
        policy = command.load("quantize")
        with result_folder(command.out, f"quantize-{Path(command.policy).stem}") as folder:
            warn_of_replacing(folder / "quantize.json")
            progress.expect(plays(policy, wanted))
            result = width_result(sweep(policy, wanted, progress), command.style).made_by("quantize", *argv)
            progress(0, "pictures")
            write_json(result.to_json(), folder / "quantize.json")
            pictures = draw_figures(result, folder)
    give_outcome(result, folder, pictures, command.json)
    if not command.json:
        for sentence in result.data["failed"]:
            say(sentence)
    return ended(result.data)
