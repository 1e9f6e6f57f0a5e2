"""Console output: results on standard output, messages and progress on standard error.

While a command runs, standard output is for results only: third-party output goes to standard error.
"""

import contextlib
import io
import json
import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.errors import UserError, printable
from shoal.results import Result, Table
from shoal.results.layout import layout
from shoal.system import streams
from shoal.system.files import absolute, shown
from shoal.system.streams import print_json, put, say, worded
from shoal.waiting import Progress, ProgressLines

WIDTH = 80  # characters of a table that is not printed on a terminal, unless `COLUMNS` is set


@contextlib.contextmanager
def warnings_as_sentences() -> Iterator[None]:
    """Print Shoal's own Python warnings as messages, without file, line and source; those of other packages stay."""
    package, show = str(Path(__file__).parent.parent), warnings.showwarning

    def tell(message: Warning | str, category: type[Warning], filename: str, lineno: int, *where: Any) -> None:
        if category is UserWarning and filename.startswith(package):
            say(str(message))
        else:
            show(message, category, filename, lineno, *where)

    with warnings.catch_warnings():
        warnings.showwarning = tell  # type: ignore[assignment]
        yield


def quoted(path: str) -> str:
    """A path quoted for a shell, on one line."""
    if path.isprintable():
        return shlex.quote(path)
    escaped = path.replace("\\", "\\\\").replace("'", "\\'")
    # bytes that are no text
    escaped = re.sub("[\udc80-\udcff]", lambda byte: f"\\x{ord(byte[0]) - 0xDC00:02x}", escaped)
    return f"$'{printable(escaped)}'"


@contextlib.contextmanager
def progress_bar(label: str, total: float | None = None) -> Iterator[Progress]:
    """Progress on standard error: a bar with the time left on a terminal, elsewhere an occasional line.

    Without a total, only the time that has passed is shown.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        with ProgressLines(say, label, total) as lines:
            yield lines
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(label, total=total)

        class Bar(Progress):
            def show(self) -> None:
                bars.update(task, completed=self.done, total=self.total, description=escape(printable(str(self))))

        yield Bar(label, total)


def print_files(run: Path, pictures: list[Path], json: bool = False) -> None:
    """Print where the files are; with `--json`, whose output is one object, as a message."""
    if json:
        say(f"The files are in {shown(run)}.")
        return
    for path in pictures:
        put(f"{path.suffix[1:].upper():<4} {printable(shown(path))}")
    put(f"in   {printable(shown(run))}")


def print_table(table: Table) -> None:
    """Print a table on standard output, as wide as the terminal or, elsewhere, as `COLUMNS` or 80 characters."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    text = io.StringIO()
    on_terminal = streams.on_terminal()
    width = None if on_terminal else int(os.environ.get("COLUMNS") or WIDTH)
    console = Console(file=text, width=width, force_terminal=on_terminal)
    narrow = not streams.encoding().lower().startswith("utf")  # has no box-drawing characters
    for part, columns in enumerate(layout(table, console.width)):
        if table.title:  # not the grid's own title, which would be wrapped to the grid's width
            console.print(Text(worded(table.title) + (", continued" if part else ""), style="table.title"))
        grid = Grid(box=box.ASCII if narrow else box.HEAVY_HEAD)
        for column in columns:
            grid.add_column(Text(column.heading), justify="left" if column.words else "right", overflow="fold")
        for cells in zip(*(column.cells for column in columns), strict=True):
            grid.add_row(*(Text(cell) for cell in cells))  # no markup: names may have brackets
        console.print(grid)
    put(text.getvalue().rstrip("\n"))


def print_result(result: Result) -> None:
    """Print the tables and findings of a result on standard output."""
    for table in result.tables:
        print_table(table)
    if result.findings:
        put("\n".join(map(worded, result.findings)))


def give_outcome(
    result: Result,
    folder: Path,
    pictures: list[Path],
    json: bool,
    quiet: bool = False,
    as_json: dict[str, Any] | None = None,
) -> None:
    """Print a result and where its files are; with `--json` its object on standard output, and nothing else there."""
    if json:
        print_json(as_json or result.to_json() | {"pictures": [str(path) for path in pictures]})
    elif not quiet:
        print_result(result)
    if not quiet:
        print_files(folder, pictures, json)


def output_file(setting: str, name: str, *suffixes: str) -> Path:
    """A file to write in an existing folder; checked before the work, not after it."""
    path = absolute(name)
    if path.suffix.lower() not in suffixes:
        raise UserError(f"`{setting}` is '{name}', but must end in {' or '.join(suffixes)}.")
    try:
        folder, beside = path.is_dir(), path.parent.is_dir()
    except OSError as error:  # a name that is too long
        raise UserError(f"`{setting}` '{name}' cannot be written: {error.strerror}.") from None
    if folder:
        raise UserError(f"`{setting}` '{name}' cannot be written: it is a folder.")
    if not beside:
        raise UserError(f"`{setting}` '{name}' cannot be written: there is no folder '{shown(path.parent)}'.")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"`{setting}` '{name}' cannot be written: Permission denied.")
    return path


def output_folder(name: str | Path, setting: str = "out") -> Path:
    """A folder to write into, created if needed; checked before the work, not after it."""
    folder = absolute(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"`{setting}` '{name}' cannot be written: {error.strerror or error}.") from None
    if not os.access(folder, os.W_OK):
        raise UserError(f"`{setting}` '{name}' cannot be written: Permission denied.")
    return folder


@contextlib.contextmanager
def result_folder(out: str | None, name: str) -> Iterator[Path]:
    """The folder `out` or, if that is None, a new one under runs/, deleted again if nothing was written into it."""
    if out is not None:
        yield output_folder(out)
        return
    from shoal.runs.folder import new_folder

    with new_folder(None, name) as run:
        folder = run.path
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def warn_of_replacing(path: Path) -> None:
    """Say before the work that an earlier result in its place will be replaced."""
    if path.exists():
        say(f"'{shown(path)}' exists and will be replaced; --out names another folder.")


def give_result(result: Result, picture: Path | None, named: str, json: bool) -> None:
    """Draw a result's first figure into `picture`, if any, which the user has `named`, and print the result."""
    if picture:
        from shoal.report.panels import draw_figure

        draw_figure(result.figures[0], picture)
        write_json(result.to_json(), picture.with_suffix(".json"))
    if json:
        print_json(result.to_json() | {"picture": named or None})
        return
    print_result(result)
    if picture:
        put(f"PNG  {printable(shown(picture))}")
        put(f"JSON {printable(shown(picture.with_suffix('.json')))}")


def write_json(value: dict[str, Any], path: Path) -> None:
    """Write the object that `--json` prints to a file."""
    from shoal.system.files import finite, write_whole

    write_whole(path, (json.dumps(finite(value), indent=1) + "\n").encode(), what="the file")


def read_json(path: Path) -> dict[str, Any]:
    """Read what `write_json` wrote."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"'{path}' cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    if not isinstance(value, dict):
        raise UserError(f"'{path}' does not hold a JSON object.")
    return value


def ended(data: Mapping[str, Any]) -> int:
    """The exit code after these results: 130 if Ctrl-C ended the work early, though finished parts were kept."""
    return 130 if data.get("interrupted") else 0
