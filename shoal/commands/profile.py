"""`shoal profile`."""

from dataclasses import dataclass, replace

from shoal.commands.arguments import Numbers, Words, numbers, parse, words
from shoal.commands.console import (
    ended,
    print_files,
    print_result,
    progress_bar,
    result_folder,
    warn_of_replacing,
    write_json,
)
from shoal.errors import UserError
from shoal.system.streams import print_json


def profile(argv: list[str]) -> int:
    """Where the time goes: phases over agents, samplers and implementations, cache misses and memory.

    shoal profile
    shoal profile --agents 3,12,48 --algorithm maddpg,masac --implementation engine
    shoal profile --agents 3,6 --caches L3=8M/16,page=2M --json

    The papers' baseline needs the extra pettingzoo; --implementation engine leaves it out.
    """

    @dataclass(frozen=True)
    class ProfileCommand:
        agents: Numbers = "3,6,12"
        """Comma-separated numbers of agents."""
        algorithm: Words = "maddpg"
        """maddpg, masac or both."""
        env: Words = "predator-prey"
        """predator-prey, cooperative-navigation or both."""
        sampler: Words = "uniform,neighbor"
        """uniform, neighbor; the reference also has neighbor-v1 and neighbor-v2 (its neighbor is v2)."""
        implementation: Words = "engine,reference"
        """engine, reference or both: they take turns, so that noise of the machine affects both alike."""
        ring: int | None = None
        """Replay capacity in transitions; None: 1,000,000, or fewer if they do not fit into memory."""
        seconds: float = 5.0
        """Seconds per combination; combinations with too few rounds are marked as cut short."""
        caches: Words = ""
        """Cache sizes of the cache model, e.g. L2=1M/16,L3=32M/16,dtlb=64/4; empty: this machine's."""
        threads: int | None = None
        """CPU threads; None: as `shoal train` chooses them."""
        device: str = "cpu"
        """Torch device of the networks: cpu, cuda, cuda:1, …; the clock synchronizes with it at every phase."""
        out: str | None = None
        """Folder for the pictures and profile.json; None: a new one under runs/."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(ProfileCommand, profile, argv)
    from shoal.profiling.cells import Sweep
    from shoal.profiling.machine import machine_geometry, parse_geometry

    agents, algorithms, envs = numbers("--agents", command.agents), words(command.algorithm), words(command.env)
    samplers, implementations = words(command.sampler), words(command.implementation)
    sweep = Sweep(
        agents, algorithms, envs, samplers, implementations, command.ring, command.seconds, threads=command.threads
    )
    sweep.check()
    geometry = parse_geometry(command.caches) if command.caches else machine_geometry()

    with progress_bar("shoal profile") as progress:
        from shoal.profiling import profile as profiling
        from shoal.profiling.figures import profile_result
        from shoal.report.panels import draw_figures
        from shoal.training.setup import make_device

        sweep = replace(sweep, settings={"device": str(make_device(command.device))})
        with result_folder(command.out, "profile") as folder:
            file = folder / "profile.json"
            warn_of_replacing(file)

            def keep(so_far: profiling.Profile) -> None:
                write_json(profile_result(so_far).made_by("profile", *argv).to_json(), file)

            progress.expect(sweep.total_seconds)
            measured = profiling.profile(sweep, geometry, progress, keep)
            if not measured.rows:
                raise UserError(f"Nothing could be measured: {' '.join(measured.failed)}")
            progress(0, "pictures")
            found = profile_result(measured).made_by("profile", *argv)
            write_json(found.to_json(), file)
            pictures = draw_figures(found, folder)
    if command.json:
        print_json(found.to_json())
    else:
        print_result(found)
    print_files(folder, pictures, command.json)
    return ended(found.data)
