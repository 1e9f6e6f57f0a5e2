"""`shoal profile`."""

from dataclasses import dataclass, replace

from shoal.commands.arguments import parse, part
from shoal.commands.console import ended, give_outcome, progress_bar, result_folder, warn_of_replacing, write_json
from shoal.errors import UserError


def profile(argv: list[str]) -> int:
    """Where the time goes: phases over agents, samplers and implementations, cache misses and memory.

    shoal profile
    shoal profile --agents 3,12,48 --algorithm maddpg,masac --implementation engine
    shoal profile --agents 3,6 --caches L3=8M/16,page=2M --json

    The papers' baseline needs the extra pettingzoo; --implementation engine leaves it out.
    """

    from shoal.profiling.cells import ProfileOptions, Sweep

    @dataclass(frozen=True)
    class ProfileCommand(ProfileOptions):
        device: str = "cpu"
        """Torch device of the networks: cpu, cuda, cuda:1, …; the clock synchronizes with it at every phase."""
        out: str | None = None
        """Folder for the pictures and profile.json; None: a new one under runs/."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(ProfileCommand, profile, argv)
    sweep = part(command, Sweep)
    sweep.check()

    with progress_bar("shoal profile") as progress:
        from shoal.profiling import profile as profiling
        from shoal.profiling.result import profile_result
        from shoal.report.panels import draw_figures
        from shoal.training.resources import make_device

        sweep = replace(sweep, settings={"device": str(make_device(command.device))})
        with result_folder(command.out, "profile") as folder:
            file = folder / "profile.json"
            warn_of_replacing(file)

            def keep(so_far: profiling.Profile) -> None:
                write_json(profile_result(so_far).made_by("profile", *argv).to_json(), file)

            progress.expect(sweep.total_seconds)
            measured = profiling.profile(sweep, progress, keep)
            if not measured.rows:
                raise UserError(f"Nothing could be measured: {' '.join(measured.failed)}")
            progress(0, "pictures")
            result = profile_result(measured).made_by("profile", *argv)
            write_json(result.to_json(), file)
            pictures = draw_figures(result, folder)
    give_outcome(result, folder, pictures, command.json, as_json=result.to_json())
    return ended(result.data)
