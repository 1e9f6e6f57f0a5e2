"""`shoal quantize`."""

from dataclasses import dataclass, field
from pathlib import Path

from shoal.commands.arguments import parse
from shoal.commands.console import ended, give_outcome, progress_bar, result_folder, warn_of_replacing, write_json
from shoal.errors import UserError
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
    from shoal.policies.quantize_options import QuantizeOptions

    @dataclass(frozen=True)
    class QuantizeCommand(PolicyArguments):
        quantize: QuantizeOptions = field(default_factory=QuantizeOptions)
        out: str | None = None
        """Folder for the pictures and quantize.json; None: a new one under runs/."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(QuantizeCommand, quantize, argv)
    options = command.quantize
    options.check()
    if not options.bits or not options.what:
        raise UserError("--bits and --what must name at least one width and one kind, e.g. --bits 8,4 --what both.")
    from shoal.policies.trained import check_loadable

    check_loadable(command.policy, command.checkpoint)

    with progress_bar("shoal quantize") as progress:
        progress(0, "loading")
        from shoal.policies.quantize import WidthSweep, plays, sweep, width_result
        from shoal.report.panels import draw_figures

        wanted = WidthSweep.of(options)
        policy = command.load("quantize")
        with result_folder(command.out, f"quantize-{Path(command.policy).stem}") as folder:
            warn_of_replacing(folder / "quantize.json")
            progress.expect(plays(policy, wanted))
            result = width_result(sweep(policy, wanted, progress), options.style).made_by("quantize", *argv)
            progress(0, "pictures")
            write_json(result.to_json(), folder / "quantize.json")
            pictures = draw_figures(result, folder)
    give_outcome(result, folder, pictures, command.json)
    if not command.json:
        for sentence in result.data["failed"]:
            say(sentence)
    return ended(result.data)
