"""`shoal profile`."""

from dataclasses import dataclass

from shoal.arguments import numbers, parse, words
from shoal.console import ended, output_folder, print_files, print_json, print_rows, progress_bar, put, write_json
from shoal.errors import UserError


def profile(argv: list[str]) -> int:
    """Where the time goes: phases over agents, samplers and implementations, cache misses and memory.

    shoal profile
    shoal profile --agents 3,12,48 --algorithm maddpg,masac --implementation engine
    shoal profile --agents 3,6 --caches L3=8M/16,page=2M --json
    """

    @dataclass(frozen=True)
    class ProfileCommand:
        agents: str = "3,6,12"
        """Comma-separated numbers of agents."""
        algorithm: str = "maddpg"
        """maddpg, masac or both."""
        env: str = "predator-prey"
        """predator-prey, cooperative-navigation or both."""
        sampler: str = "uniform,neighbor"
        """uniform, neighbor; the reference also has neighbor-v1 and neighbor-v2 (its neighbor is v2)."""
        implementation: str = "engine,reference"
        """engine, reference or both: they take turns, so that noise of the machine affects both alike."""
        ring: int | None = None
        """Replay capacity in transitions; None: 1,000,000, or fewer if they do not fit into memory."""
        seconds: float = 5.0
        """Seconds per combination; combinations with too few rounds are marked as cut short."""
        caches: str = ""
        """Cache sizes of the cache model, e.g. L2=1M/16,L3=32M/16,dtlb=64/4; empty: this machine's."""
        threads: int | None = None
        """CPU threads; None: as `shoal train` chooses them."""
        device: str = "cpu"
        """Torch device of the networks: cpu, cuda, cuda:1, …; the clock synchronizes with it at every phase."""
        out: str = "profile"
        """Folder for the pictures and profile.json."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(ProfileCommand, profile, argv)
    from shoal.profiling import profile as profiling
    from shoal.profiling.machine import machine_geometry, parse_geometry
    from shoal.profiling.tables import remarks, tables
    from shoal.report.phases import draw_profile
    from shoal.training.setup import make_device

    agents, algorithms, envs = numbers("--agents", command.agents), words(command.algorithm), words(command.env)
    samplers, implementations = words(command.sampler), words(command.implementation)
    sweep = profiling.Sweep(
        agents, algorithms, envs, samplers, implementations, command.ring, command.seconds,
        {"device": str(make_device(command.device))}, threads=command.threads,
    )  # fmt: skip
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
        return ended(found)
    for title, rows in tables(found):
        print_rows(title, rows)
    put("\n".join(remarks(found)))
    print_files(folder, pictures)
    return ended(found)
