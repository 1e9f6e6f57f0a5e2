"""The command line: one function a command. Heavy modules are imported by the commands that need them."""

import contextlib
import dataclasses
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from shoal.arguments import folder_after_resume, numbers, parse, stored_settings, words
from shoal.console import (
    answers_only,
    output_folder,
    print_files,
    print_json,
    print_rows,
    progress_bar,
    put,
    quoted,
    read_json,
    say,
    write_json,
)
from shoal.errors import UserError, check_range

if TYPE_CHECKING:
    from shoal.training.result import TrainResult


def train(argv: list[str]) -> int:
    """Train a team into a run folder, with a progress bar; --resume goes on after a stop.

    shoal train --env cooperative-navigation --episodes 8000
    shoal train --env predator-prey --agents 6 --algorithm masac --out runs/hunt
    shoal train --env gym:Pendulum-v1 --algorithm masac --episodes 300 --discount 0.99
    shoal train --resume runs/hunt
    """
    from shoal.training.config import TrainConfig

    @dataclass(frozen=True)
    class TrainCommand(TrainConfig):
        resume: bool = False
        """Go on with the run in --out (or written --resume FOLDER) from its newest whole checkpoint."""
        watch: bool = False
        """Draw an episode of the trained team at the end (as `shoal watch`)."""
        quiet: bool = False
        """Show no progress."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    argv = folder_after_resume(argv)
    stored = stored_settings(argv)  # a resumed run's: what is not said stays as it was
    command = parse(TrainCommand, train, argv, TrainCommand(**vars(stored)) if stored else None)
    config = TrainConfig(**{field.name: getattr(command, field.name) for field in dataclasses.fields(TrainConfig)})
    config = config.checked()

    from shoal.training import loop
    from shoal.training.progress import ProgressDisplay, Quiet
    from shoal.training.setup import check_kept

    if stored and config.out:
        check_kept(vars(config), stored, Path(config.out))
    was_finished = bool(stored and config.out) and (Path(config.out or "") / "result.json").exists()
    result = loop.train(config, command.resume, Quiet(say) if command.quiet else ProgressDisplay())
    try:
        if command.json:
            print_json(dataclasses.asdict(result))
        elif result.signal is None and not command.quiet:
            print_result(result)
    finally:  # also where nobody takes the answer
        pictures = [draw_curve(result)] if result.signal is None and not was_finished else []
    if result.signal is not None:
        say(f"Stopped and saved at episode {result.episodes:,}; go on with: shoal train --resume {quoted(result.run)}")
        return 128 + result.signal
    if command.watch:
        pictures += draw_episode(Path(result.run), seed=0, noisy=False)
    if not command.json and not command.quiet:
        print_files(Path(result.run), pictures)
    return 0


def evaluate(argv: list[str]) -> int:
    """Returns of a run's trained team beside a random team, with 95 % confidence intervals.

    shoal evaluate runs/hunt
    shoal evaluate runs/hunt --episodes 1000 --json
    """
    import tyro

    @dataclass(frozen=True)
    class EvaluateCommand:
        run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
        """Run folder."""
        episodes: int = 200
        """Episodes that each team plays."""
        seed: int = 1
        """Decides the starts of the episodes and all noise."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(EvaluateCommand, evaluate, argv)
    check_range("--seed", command.seed, 0, 2**62)
    from shoal.training.evaluation import evaluate_team, load_team

    team, config = load_team(Path(command.run), say)
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


def watch(argv: list[str]) -> int:
    """Draw an episode of a run's trained team: a strip of pictures (PNG) and a film (GIF).

    shoal watch runs/hunt
    shoal watch runs/hunt --seed 7 --noisy
    """
    import tyro

    @dataclass(frozen=True)
    class WatchCommand:
        run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
        """Run folder."""
        seed: int = 0
        """Which episode: decides where everybody starts."""
        noisy: bool = False
        """Play with the noise of training instead of the most likely actions."""

    command = parse(WatchCommand, watch, argv)
    check_range("--seed", command.seed, 0, 2**62)
    for path in draw_episode(Path(command.run), command.seed, command.noisy):
        put(str(path))
    return 0


def bench(argv: list[str]) -> int:
    """Shoal's own ratios, each measured in one run: worlds over mpe2, updates over bare products, and so on.

    shoal bench env
    shoal bench update --agents 3,12,48
    shoal bench all --json
    """
    import tyro

    @dataclass(frozen=True)
    class BenchCommand:
        name: Annotated[
            Literal["env", "update", "replay", "phases", "checkpoint", "train", "all"],
            tyro.conf.Positional,
            tyro.conf.arg(metavar="BENCH"),
        ]
        """env: worlds over mpe2; update: an update over its bare matrix products; replay: samplers over a copy;
        phases: shares of sampling and acting; checkpoint: its time over training's; train: whole training over the
        reference's and its ceiling; all: each of them."""
        agents: str = ""
        """Numbers of agents with commas between; none: the bench's own."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(BenchCommand, bench, argv)
    from shoal.bench import BENCHES, run_bench, sizes

    agents = numbers("--agents", command.agents)
    names = list(BENCHES) if command.name == "all" else [command.name]
    work = [(name, n) for name in names for n in sizes(name, agents)]
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with progress_bar(f"shoal bench {command.name}", len(work)) as advance:
        for name, n in work:
            rows[name] += run_bench(name, n)
            advance(1)
    if command.json:
        print_json({"rows": [{"bench": name, **row} for name in names for row in rows[name]]})
    else:
        for name in names:
            print_rows(f"shoal bench {name}: {BENCHES[name]}", rows[name])
    return 0


def profile(argv: list[str]) -> int:
    """Where the time goes: phases over agents, samplers and implementations, cache misses and memory.

    shoal profile
    shoal profile --agents 3,12,48 --algorithm maddpg,masac --implementation engine
    shoal profile --agents 3,6 --caches L3=8M/16,page=2M --json
    """

    @dataclass(frozen=True)
    class ProfileCommand:
        agents: str = "3,6,12"
        """Numbers of agents, with commas between."""
        algorithm: str = "maddpg"
        """maddpg, masac or both."""
        env: str = "predator-prey"
        """predator-prey, cooperative-navigation or both."""
        sampler: str = "uniform,neighbor"
        """uniform, neighbor; the reference also has neighbor-v1 and neighbor-v2 (its neighbor is v2)."""
        implementation: str = "engine,reference"
        """engine, reference or both: they take turns, so that the machine's noise hits both alike."""
        ring: int = 1_000_000
        """Transitions in every ring; fewer if they do not fit into memory."""
        seconds: float = 5.0
        """Time for each combination; what it was too short for is said to be cut short."""
        caches: str = ""
        """Cache sizes for the model, where they are not this machine's, e.g. L2=1M/16,L3=32M/16,dtlb=64/4."""
        threads: int | None = None
        """Processor threads; None: all."""
        out: str = "profile"
        """Folder for the pictures and profile.json."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(ProfileCommand, profile, argv)
    from shoal.profiling import profile as profiling
    from shoal.profiling.machine import machine_geometry, parse_geometry
    from shoal.profiling.tables import remarks, tables
    from shoal.report.phases import draw_profile

    agents, algorithms, envs = numbers("--agents", command.agents), words(command.algorithm), words(command.env)
    samplers, implementations = words(command.sampler), words(command.implementation)
    sweep = profiling.Sweep(
        agents, algorithms, envs, samplers, implementations, command.ring, command.seconds, threads=command.threads
    )
    sweep.check()
    geometry = parse_geometry(command.caches) if command.caches else machine_geometry()
    folder = output_folder(command.out)
    with progress_bar("shoal profile", sweep.total_seconds) as advance:
        found = profiling.profile(
            sweep, geometry, advance, lambda so_far: write_json(so_far.to_dict(), folder / "profile.json")
        ).to_dict()
    if not found["rows"]:
        raise UserError(f"Nothing could be measured: {' '.join(found['failed'])}")
    pictures = draw_profile(found, folder)
    if command.json:
        print_json(found)
        return 0
    for title, rows in tables(found):
        print_rows(title, rows)
    put("\n".join(remarks(found)))
    print_files(folder, pictures)
    return 0


def study(argv: list[str]) -> int:
    """Redraw one of the papers' figures, with the papers' numbers beside ours; --list names them.

    shoal study --list
    shoal study breakdown --quick
    shoal study neighbor-reward --out studies
    """
    import tyro

    @dataclass(frozen=True)
    class StudyCommand:
        name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")] = ""
        """Which study."""
        list: bool = False
        """Name all studies."""
        quick: bool = False
        """Fewer cells, shorter runs: an impression within two minutes."""
        data: str = ""
        """Make it of an earlier study's or profile's JSON file instead of measuring."""
        out: str = "studies"
        """Folder for the picture and the JSON file."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(StudyCommand, study, argv)
    from shoal.studies import STUDIES, run_study, study_length, study_of

    if command.list:
        if command.json:
            print_json({"studies": STUDIES})
        else:
            put("\n".join(f"{name:<16} {title}" for name, title in STUDIES.items()))
        return 0
    if not command.name:
        raise UserError(f"A study must be named: {', '.join(STUDIES)}.")
    length = study_length(command.name, command.quick)
    folder = output_folder(command.out)
    if command.data:
        held = read_json(Path(command.data))
        found = study_of(command.name, held.get("data", held))
    else:
        with progress_bar(f"shoal study {command.name}", length) as advance:
            found = run_study(command.name, command.quick, advance)
    form = "-quick" if command.quick else ""
    write_json(dataclasses.asdict(found), folder / f"{found.name}{form}.json")
    from shoal.report.studies import draw_study

    picture = draw_study(found, folder / f"{found.name}{form}.png")
    if command.json:
        print_json(dataclasses.asdict(found))
        return 0
    for title, rows in found.tables:
        print_rows(title, rows)
    put("\n".join(found.findings))
    print_files(folder, [picture])
    return 0


COMMANDS = {
    "train": train,
    "evaluate": evaluate,
    "watch": watch,
    "profile": profile,
    "study": study,
    "bench": bench,
}


def main(argv: list[str] | None = None) -> int:
    """Run a command; what is the user's to mend ends in one sentence and exit code 2."""
    try:
        with answers_only():
            return run_command(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        say(f"shoal: {error}")
        return 2
    except KeyboardInterrupt as stop:
        say("Interrupted.")
        return 128 + getattr(stop, "number", 2)
    except MemoryError:
        say("shoal: There is not enough memory; fewer --agents, a smaller --capacity or --batch need less.")
        return 2


def run_command(argv: list[str]) -> int:
    """Find the command and run it."""
    with contextlib.suppress(OSError):  # the working directory may be gone
        sys.path.append(os.getcwd())  # a person's own environments lie where they work
    if not argv or argv[0] in ("-h", "--help", "help"):
        put(overview())
        return 0 if argv else 2
    if argv[0] == "--version":
        from shoal import __version__

        put(__version__)
        return 0
    if argv[0] not in COMMANDS:
        raise UserError(f"There is no command '{argv[0]}'; the commands are {', '.join(COMMANDS)}.")
    from shoal.processes import prepare
    from shoal.training.interrupt import stop_at_signals

    prepare()
    stop_at_signals()
    return COMMANDS[argv[0]](argv[1:])


def overview() -> str:
    """The text of `shoal --help`."""
    lines = ["Shoal trains teams of agents, and shows where every second and every bit goes.", ""]
    for name, command in COMMANDS.items():
        text, *examples = [line.strip() for line in (command.__doc__ or "").strip().splitlines() if line.strip()]
        lines += [f"  shoal {name:<10} {text}", *(f"      {example}" for example in examples[:1])]
    return "\n".join([*lines, "", "`shoal COMMAND --help` tells all about a command."])


# ---- what commands share -------------------------------------------------------------------------------------------


def print_result(result: "TrainResult") -> None:
    """The table at the end of training."""
    if result.return_random is not None:
        teams = {
            name: (getattr(result, f"return_{name}"), getattr(result, f"return_{name}_ci95"))
            for name in ("deterministic", "noisy", "random")
        }
        print_returns(teams, None)
    put(
        f"{result.episodes:,} episodes, {result.env_steps:,} steps and {result.updates:,} updates "
        f"in {result.seconds:,.1f} s ({result.steps_per_second:,.0f} steps/s)"
    )


def print_returns(teams: dict[str, tuple[float, float | None]], episodes: int | None) -> None:
    """Trained against random, with intervals."""
    labels = {
        "deterministic": "trained, most likely actions",
        "noisy": "trained, with training noise",
        "random": "random team",
    }
    rows = [
        {"team": labels[name], "return per agent": mean, "95 % interval": interval(mean, ci)}
        for name, (mean, ci) in teams.items()
    ]
    print_rows("Return of an episode" + (f", {episodes:,} episodes each" if episodes else ""), rows)


def interval(mean: float, ci: float | None) -> str:
    """From where to where; one episode alone tells nothing about it."""
    return "–" if ci is None or ci != ci else f"{mean - ci:,.1f} to {mean + ci:,.1f}"


def draw_curve(result: "TrainResult") -> Path:
    """The learning curve of a run."""
    from shoal.report.curve import draw_curve

    run = Path(result.run)
    name = os.fsencode(run.resolve().name).decode(errors="replace")  # a name may hold what is no text
    draw_curve(run / "metrics.jsonl", run / "curve.png", title=name, random_return=result.return_random)
    return run / "curve.png"


def draw_episode(run: Path, seed: int, noisy: bool) -> list[Path]:
    """An episode of the trained team as strip and film, in the run folder."""
    from shoal.report.watch import draw_run

    return draw_run(run, seed, noisy, say)
