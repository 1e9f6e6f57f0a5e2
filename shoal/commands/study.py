"""`shoal study`."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from shoal.arguments import parse
from shoal.commands.profile import ended
from shoal.console import output_folder, print_files, print_json, print_rows, progress_bar, put, read_json, write_json
from shoal.errors import UserError


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
    if command.data:
        held = read_json(Path(command.data))
        found = study_of(command.name, held.get("data", held))
        folder = output_folder(command.out)
    else:
        folder = output_folder(command.out)
        with progress_bar(f"shoal study {command.name}", length) as advance:
            found = run_study(command.name, command.quick, advance)
    form = "-quick" if command.quick else ""
    write_json(dataclasses.asdict(found), folder / f"{found.name}{form}.json")
    from shoal.report.studies import draw_study

    picture = draw_study(found, folder / f"{found.name}{form}.png")
    if command.json:
        print_json(dataclasses.asdict(found))
        return ended(found.data)
    for title, rows in found.tables:
        print_rows(title, rows)
    put("\n".join(found.findings))
    print_files(folder, [picture])
    return ended(found.data)
