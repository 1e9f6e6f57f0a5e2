"""The slides' table of frameworks for low-precision training, with a row for Shoal and a command for each of its cells.

The first five rows are the slides'; nothing is measured here. What the slides mean by some of their columns is our
reading, which the findings state.
"""

from shoal.results import Column, Result, Table
from shoal.waiting import Advance
from shoal_papers.cells import Options
from shoal_papers.study import Data, Study

FEATURES = ("fast", "accurate", "seamless", "dynamic libraries", "independent", "platforms")
SLIDES = {
    "QPyTorch": ("++", "–", "–", "–", "–", "CPU, GPU"),
    "TensorQuant": ("+", "+", "–", "–", "–", "CPU, GPU"),
    "FASE": ("+", "+", "+", "+", "+", "CPU"),
    "MPTorch": ("+", "+", "–", "–", "–", "CPU, GPU, FPGA"),
    "Archimedes-MPO": ("+", "+", "–", "–", "–", "CPU, GPU, FPGA"),
}
SHOAL = {
    "fast": (
        "++", "hundreds of times MPTorch's rate on a CPU; the bench has both",
        "shoal bench emulated-training",
    ),
    "accurate": (
        "+", "bit for bit: CFG-1 to CFG-6, float and saturating fixed accumulators, order, ties; checked against "
        "exact arithmetic", "shoal mac describe E5M2:5+Q8.13",
    ),
    "seamless": (
        "+", "unmodified PyTorch models and optimizers, forward, backward and update",
        "shoal mac train --model transformer --scheme E5M2:5+E6M5 --loss-scale dynamic",
    ),
    "dynamic libraries": (
        "–", "works on PyTorch's operations, not on a program's machine code; what it could not reach is listed",
        "shoal mac train --scheme hfp8 --epochs 1",
    ),
    "independent": (
        "–", "bound to PyTorch; products, formats and areas can be used without any model",
        "shoal mac sweep E5M2:5+E6M5 E5M2:5+Q8.13",
    ),
    "platforms": (
        "CPU", "the area and energy of the FPGA are modelled, not synthesised", "shoal mac area E5M2:5+E6M5 fp32",
    ),
}  # fmt: skip
"""Our cell, why, and the command that shows it."""
READING = (
    "Our reading of the columns: fast is the speed of the emulation; accurate, that it computes the bits of the "
    "hardware; seamless, that the user's program is not rewritten; dynamic libraries, that code inside compiled "
    "libraries is reached as well; independent, that it is tied to no framework."
)


class Frameworks(Study, name="frameworks"):
    """The slides' table, and why Shoal's row is what it is."""

    title = "Frameworks for low-precision training"

    def length(self, quick: bool, options: Options) -> float:
        return 1.0

    def run(self, quick: bool, advance: Advance, options: Options) -> Result:
        advance(1.0, "table")
        names = ("feature", "mark", "why", "command")
        return self.result({"rows": [dict(zip(names, (name, *cell), strict=True)) for name, cell in SHOAL.items()]})

    def result(self, data: Data) -> Result:
        marks = {row["feature"]: row["mark"] for row in data["rows"]}
        lines = [*SLIDES.items(), ("Shoal", tuple(marks[feature] for feature in FEATURES))]
        tables = [
            Table.of(
                "Frameworks (slides), and Shoal",
                [{Column("framework"): name} | dict(zip(map(Column, FEATURES), marks, strict=True))
                 for name, marks in lines],
            ),
            Table.of(
                "Shoal's row, and the command that shows each cell",
                [{Column("feature"): row["feature"], Column("Shoal"): row["mark"], Column("why"): row["why"],
                  Column("command"): row["command"]} for row in data["rows"]],
            ),
        ]  # fmt: skip
        return Result(self.name, self.title, tables, [READING], [], {**data})
