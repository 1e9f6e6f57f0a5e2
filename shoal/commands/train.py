"""`shoal train`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.commands.arguments import folder_after_resume, is_given, option, parse, renamed
from shoal.commands.console import print_files, quoted
from shoal.commands.returns import print_returns, print_symptom, run_symptom
from shoal.errors import UserError, counted
from shoal.system.files import shown
from shoal.system.streams import print_json, put, say
from shoal.waiting import said_if_long

if TYPE_CHECKING:
    from shoal.commands.train_arguments import TrainArguments
    from shoal.training.result import TrainResult


def train(argv: list[str]) -> int:
    """Train a team and write a run folder; --resume continues a stopped run.

    shoal train --env cooperative-navigation --episodes 8000
    shoal train --preset tuned --env predator-prey --episodes 30000
    shoal train --env predator-prey --agents 6 --algorithm masac --out runs/hunt
    shoal train --env gym:Pendulum-v1 --algorithm masac --episodes 300 --discount 0.99
    shoal train --env dm:cartpole/balance --algorithm d4pg --episodes 100        # needs the extra control
    shoal train --evaluate-every 500 --snapshots 8 --out runs/kept
    shoal train --seeds 0-9 --episodes 8000 --out runs/ten
    shoal train --resume runs/hunt
    shoal train --resume runs/hunt --episodes 120000
    """
    from shoal.api import train as train_team
    from shoal.commands.train_arguments import ALIASES, TrainArguments, own_values
    from shoal.runs.folder import CURVE, DIAGNOSIS
    from shoal.runs.observer import Quiet
    from shoal.training.progress import ProgressDisplay

    argv = folder_after_resume(renamed(argv, ALIASES))
    arguments = parse(TrainArguments, train, argv, meaning_of_none=own_values())
    command, config = arguments.run, arguments.config()
    if command.seeds is not None:
        return train_seeds(arguments, argv)
    if command.parallel is not None:
        raise UserError("--parallel is the number of runs side by side, but there is only one; give --seeds as well.")
    if command.watch:
        from shoal.envs.rendering import prepare_rendering

        prepare_rendering()
    observer = Quiet(say) if command.quiet else ProgressDisplay()
    asked = [name for name in vars(config) if is_given(argv, name)]  # a resumed run keeps everything else
    result = train_team(config, command.resume, observer, command.trust, asked=asked)
    run = Path(result.run)
    if command.json:
        print_json(result.to_json() | {"symptom": run_symptom(run)})
    elif result.signal is None and not command.quiet:
        print_result(result)
        print_symptom(run_symptom(run))
    if result.signal is not None:
        from shoal.training.config import read_config
        from shoal.training.world_file import needs_trust

        again = f"shoal train --resume {quoted(shown(run))}{' --trust' if needs_trust(read_config(run), run) else ''}"
        say(f"Stopped and saved at episode {result.episodes:,}; resume with: {again}")
        return 128 + result.signal
    pictures = [path for path in (run / CURVE, run / DIAGNOSIS) if path.exists()]
    if command.watch:
        from shoal.report.watch import draw_run

        with said_if_long(observer.note, "Drawing an episode."):
            pictures += draw_run(run, 0, False, say, trust=True)  # its world has just been played
    if not command.json and not command.quiet:
        print_files(run, pictures)
    return 0


def train_seeds(arguments: "TrainArguments", argv: list[str]) -> int:
    """The same settings with several seeds side by side."""
    from shoal.commands.sweep import chosen_folder, subject, train_all
    from shoal.runs.folder import file_name
    from shoal.sweeps.grid import list_runs, parse_seeds

    command, config = arguments.run, arguments.config()
    for name in ("seed", "threads", "resume", "watch"):
        if is_given(argv, name):
            reason = "run the same command again to continue" if name == "resume" else "leave one of them out"
            raise UserError(f"{option(name)} and --seeds cannot be used together; {reason}.")
    seeds = parse_seeds("--seeds", ",".join(command.seeds or ()))
    out = chosen_folder(config.out, file_name(f"{config.env}-{config.algorithm}-seeds"))
    base = {name: value for name, value in vars(config).items() if name not in ("seed", "out", "threads")}
    runs = list_runs(base, [{}], seeds, out)
    again = shlex.join(["shoal", "train", *argv])
    return train_all(
        runs, out, subject([config]), command.parallel, command.quiet, command.json, ["train", *argv], again
    )


def print_result(result: "TrainResult") -> None:
    """The table at the end of training."""
    from shoal.training.evaluation import PLAYERS
    from shoal.training.result import COLUMNS

    if result.return_random is not None:
        teams = {name: (getattr(result, f"return_{name}"), getattr(result, f"return_{name}_ci95")) for name in PLAYERS}
        teams |= {name: (own["return"] or 0.0, own["ci95"]) for name, own in result.controllers.items()}
        fields = {name: getattr(result, name) for name in COLUMNS}
        print_returns(teams, None, fields=fields, trained=result.updates > 0, controllers=result.controllers)
    if result.stopped is not None:
        put(f"stopped early: {result.stopped}")
    put(
        f"{counted(result.episodes, 'episode')}, {counted(result.env_steps, 'step')} and "
        f"{counted(result.updates, 'update')} "
        f"in {result.seconds:,.1f} s ({result.steps_per_second:,.0f} steps/s)"
    )
