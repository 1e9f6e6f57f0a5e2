"""`shoal study`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from shoal.commands.arguments import parse, part
from shoal.commands.console import (
    ended,
    give_outcome,
    output_folder,
    progress_bar,
    read_json,
    warn_of_replacing,
    write_json,
)
from shoal.errors import UserError, check_range
from shoal.lazy import papers
from shoal.system.streams import print_json, put


def study(argv: list[str]) -> int:
    """Reproduce one of the papers' figures, with their numbers beside ours; --list names them.

    shoal study --list
    shoal study breakdown --quick                              # needs the extra pettingzoo
    shoal study neighbor-reward --out figures
    shoal study qat --budget 120                               # needs the extra sb3
    shoal study ptq-table --cells papers/cells --budget 0      # from finished cells alone; needs the extra sb3
    shoal study ptq-table --model breakout.zip --env ALE/Breakout-v5
    shoal study actorq-speed --budget 70                       # needs the extra control
    """
    import tyro

    studies = papers()

    @dataclass(frozen=True)
    class StudyCommand(studies.Options):  # type: ignore[name-defined]
        name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY", help_behavior_hint="")] = ""
        """Name of the study."""
        list: bool = False
        """List all studies."""
        quick: bool = False
        """Fewer cells and shorter runs: a first impression within two minutes."""
        data: str = ""
        """Use the JSON file of an earlier study or profile instead of measuring."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(StudyCommand, study, argv)
    from shoal.results import Result

    if command.list:
        if command.json:
            print_json({"studies": studies.STUDIES})
        else:
            put("\n".join(f"{name:<20} {title}" for name, title in studies.STUDIES.items()))
        return 0
    if not command.name:
        raise UserError(f"A study must be named: {', '.join(studies.STUDIES)}.")
    options = part(command, studies.Options)
    check_range("budget", options.budget, 0, 10**6)
    studies.check_options(command.name, options)
    name = f"{command.name}{'-quick' if command.quick else ''}"
    if command.data:
        stored = Result.from_json(read_json(Path(command.data)))
        result = replace(studies.study_of(command.name, stored.data), provenance=stored.provenance)
        folder = output_folder(options.out)
    else:
        with progress_bar(f"shoal study {command.name}") as progress:
            progress.expect(studies.study_length(command.name, command.quick, options))
            if options.cells:
                output_folder(options.cells, "cells")
            folder = output_folder(options.out)
            if command.name not in studies.OF_CELLS:  # which are continued
                warn_of_replacing(folder / f"{name}.json")
            result = studies.run_study(command.name, command.quick, progress, options).made_by("study", *argv)
    as_json = result.to_json(nested=True) | {"picture": f"{name}.png"}
    write_json(as_json, folder / f"{name}.json")
    with progress_bar(f"shoal study {command.name}: pictures"):
        from shoal.report.panels import draw_figures

        pictures = draw_figures(result, folder, name.removeprefix(command.name))
    give_outcome(result, folder, pictures, command.json, as_json=as_json)
    return ended(result.data)
