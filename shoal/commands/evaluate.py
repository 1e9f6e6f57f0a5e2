"""`shoal evaluate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from shoal.arguments import parse
from shoal.commands.returns import print_returns
from shoal.console import print_json, progress_bar, say
from shoal.errors import check_range


def evaluate(argv: list[str]) -> int:
    """Returns of a run's trained team or an exported policy beside a random team, with 95 % confidence intervals.

    shoal evaluate runs/hunt
    shoal evaluate runs/hunt --episodes 1000 --json
    shoal evaluate policy.onnx --env predator-prey
    """
    from shoal.commands.evaluate_file import evaluate as evaluate_file
    from shoal.commands.evaluate_file import is_policy_file

    if is_policy_file(argv):
        return evaluate_file(argv)
    import tyro

    @dataclass(frozen=True)
    class EvaluateCommand:
        run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN-OR-FILE")]
        """Run folder, or a file of `shoal export`, whose options `shoal evaluate policy.onnx --help` lists."""
        episodes: int = 200
        """Episodes that each team plays."""
        seed: int = 1
        """Decides the starts of the episodes and all noise."""
        trust: bool = False
        """Let third-party code run that the run names as its environment (gym:MODULE:ID, pettingzoo:MODULE)."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(EvaluateCommand, evaluate, argv)
    check_range("--seed", command.seed, 0, 2**62)
    from shoal.training.evaluation import evaluate_team, load_team

    team, config = load_team(Path(command.run), say, command.trust)
    with progress_bar("shoal evaluate", 3 * command.episodes) as advance:
        played = evaluate_team(team, config, command.episodes, command.seed, advance)
    if command.json:
        best = played["deterministic"]
        figures: dict[str, Any] = {"run": command.run, "episodes": best.episodes}
        figures |= {"return_mean": best.mean, "return_ci95": best.ci95, "return_prey": best.prey_mean}
        for name in ("noisy", "random"):
            figures |= {f"return_{name}": played[name].mean, f"return_{name}_ci95": played[name].ci95}
        print_json(figures)
    else:
        print_returns({name: (result.mean, result.ci95) for name, result in played.items()}, command.episodes)
    return 0
