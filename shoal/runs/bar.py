"""The bar of a progress display, drawn with rich."""

from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class Phrases:
    """Text whose phrases, with two spaces between them, stay whole when it is wrapped."""

    def __init__(self, text: str, style: str = "") -> None:
        self.text, self.style = text, style

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Wide enough for the longest phrase, or for all."""
        longest = max(cell_len(phrase) for phrase in self.text.split("  "))
        return Measurement(longest, cell_len(self.text)).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As many phrases in a line as fit."""
        first, *rest = self.text.split("  ")
        lines = [first]
        for phrase in rest:
            if cell_len(longer := f"{lines[-1]}  {phrase}") <= options.max_width:
                lines[-1] = longer
            else:
                lines.append(phrase)
        yield Text("\n".join(lines), style=self.style)


class MetricsColumn(ProgressColumn):
    """The metrics beside the bar, in several lines if they must be."""

    def render(self, task: Task) -> RenderableType:
        return Phrases(task.fields["metrics"])


class TwoLines(Progress):
    """A progress bar that counts steps of some kind, with a line of text below it."""

    below = ""

    def __init__(self, console: Console, unit: str, total: int, done: int, transient: bool) -> None:
        super().__init__(
            TextColumn(f"{unit} {{task.completed:,.0f}}/{{task.total:,.0f}}"),
            BarColumn(bar_width=10),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            MetricsColumn(),
            console=console,
            transient=transient,
            auto_refresh=False,  # no thread: drawn when there is something new
        )
        self.add_task(unit, total=total, completed=done, metrics="")

    def draw(self, done: int, metrics: str, below: str) -> None:
        """Move the bar and redraw it with these texts."""
        self.below = below
        self.update(self.task_ids[0], completed=done, metrics=metrics, refresh=True)

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        yield Phrases(self.below, style="dim")
