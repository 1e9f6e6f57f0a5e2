"""How a native operation is declared: its opcode, its recorder and its place in the dispatch follow from its loop.

    @operation(fastmath={"contract"})
    def add_noise(like, row, rows, action: Changes, ld_action, size: Count, key: Stream, deviation: Real):
        ...

A loop's parameters are what every loop may have, by name (`HANDED`), then operands and fields, by annotation; `ld_x`
and `width_x` are those of the rows that are given as operand x. Operands reach the loop as addresses, 0 if absent. An
algorithm records `program.add_noise(action, size, stream, deviation)`, and a generated function runs what is recorded.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from shoal.compiled import njit, source_hash
from shoal.native.arithmetic import key_of, number

OFFSET_BITS = 44  # an operand is a buffer's number and, in its lowest bits, the place in it
NOWHERE = -1  # an absent operand; a number of rows that is the number at hand
OPERANDS, FIELDS = 7, 12
"""Most operands and fields of an operation. In the table it is its code, its operands, then its fields."""

Reads = Annotated[int, "an operand that the loop reads"]
Writes = Annotated[int, "an operand that it writes"]
Changes = Annotated[int, "an operand that it reads and writes"]
Count = Annotated[int, "a whole number"]
RowCount = Annotated[int, "a number of rows, or NOWHERE for the rows at hand"]
Real = Annotated[float, "a number of the program's type"]
Double = Annotated[float, "a float64"]
Stream = Annotated[int, "the number of a stream of noise; the loop is given its key in this update"]

HANDED = ("like", "item", "row", "rows", "moment", "bases", "slots", "clocks")
"""What a loop may have without its being recorded: a zero of the program's type, bytes of such a number; the first of
the rows at hand, and how many there are; the number of the update; the thread's addresses of all buffers, the addresses
of published gradients, and the thread's clock."""
_FIELDS: dict[Any, str] = {
    Count: "{}",
    RowCount: "rows if {0} < 0 else {0}",
    Real: "number(like, np.int64({}).view(np.float64))",
    Double: "np.int64({}).view(np.float64)",
    Stream: "key_of(seed, moment, {})",
}
"""How the dispatch makes a loop's argument of a field."""


class Rows(NamedTuple):
    """Numbers in rows: where the first one is, the distance between rows, and how many in a row."""

    at: int
    ld: int
    width: int

    def columns(self, first: int, width: int) -> "Rows":
        """Some of the columns."""
        return Rows(self.at + first, self.ld, width)


class Operation:
    """A compiled loop with what its parameters are."""

    def __init__(self, function: Callable[..., None], **options: Any) -> None:
        self.name = function.__name__
        self.loop = njit(nogil=True, error_model="numpy", **options)(function)
        parameters = list(inspect.signature(function).parameters.values())
        given = [parameter for parameter in parameters if parameter.annotation is not parameter.empty]
        self.recorder = inspect.Signature(given)
        self.operands = [p.name for p in given if p.annotation in (Reads, Writes, Changes)]
        self.written = [p.name for p in given if p.annotation in (Writes, Changes)]
        self.fields: list[str] = []
        self.arguments: list[str] = []  # of the loop, as the dispatch writes them
        for parameter in parameters:
            name = parameter.name
            if name in HANDED:
                self.arguments.append(name)
            elif name in self.operands:
                self.arguments.append(f"p{self.operands.index(name)}")
            else:
                self.arguments.append(_FIELDS[Count if parameter not in given else parameter.annotation].format(
                    f"op[{1 + OPERANDS + len(self.fields)}]"
                ))  # fmt: skip
                self.fields.append(name)
        assert len(self.operands) <= OPERANDS and len(self.fields) <= FIELDS, f"{self.name} has too many parameters"

    def encoded(self, code: int, *given: Any, **named: Any) -> list[int]:
        """The operation as a row of the table, for these operands and fields."""
        bound = self.recorder.bind(*given, **named)
        bound.apply_defaults()
        values = bound.arguments
        given_at = [values[name] for name in self.operands] + [NOWHERE] * (OPERANDS - len(self.operands))
        operands = [NOWHERE if operand is None else getattr(operand, "at", operand) for operand in given_at]
        fields = [self._field(name, values) for name in self.fields] + [0] * (FIELDS - len(self.fields))
        return [code, *operands, *fields]

    def _field(self, name: str, values: dict[str, Any]) -> int:
        if name in values:
            real = self.recorder.parameters[name].annotation in (Real, Double)
            return int(np.float64(values[name]).view(np.int64)) if real else int(values[name])
        part, operand = name.split("_", 1)  # ld_x or width_x
        return int(getattr(values[operand], part, 0))

    def writes(self, encoded: list[int]) -> list[int]:
        """The operands that a recorded operation writes."""
        return [encoded[1 + self.operands.index(name)] for name in self.written]

    @property
    def source(self) -> str:
        """A hash of what its loop is compiled from; empty where there is no file, as in a notebook."""
        file = self.loop.py_func.__code__.co_filename
        return source_hash(file) if Path(file).is_file() else ""


def operation(**options: Any) -> Callable[[Callable[..., None]], Operation]:
    """Declare the function that follows as an operation; `options` are numba's."""
    return lambda function: Operation(function, **options)


# ---- dispatch --------------------------------------------------------------------------------------------------------


@register_jitable
def place(bases, strides, operand, row, item):  # type: ignore[no-untyped-def]
    """The address of an operand, for rows from `row` on; 0 if it is absent."""
    if operand < 0:
        return 0
    buffer = operand >> OFFSET_BITS
    return bases[buffer] + ((operand & ((1 << OFFSET_BITS) - 1)) + row * strides[buffer]) * item


def dispatch_source(operations: Sequence[Operation]) -> str:
    """The text of `execute`, which runs recorded operations: each is a branch with a call of its loop."""
    lines = [
        "def execute(tables, own, first, last, row, rows):",
        "    like, item, bases, strides = tables.zero[0], tables.zero.itemsize, own.bases, tables.strides",
        "    clocks, slots, seed, moment = own.clocks, tables.slots, tables.counters[0], tables.counters[1]",
        "    for index in range(first, last):",
        "        op = tables.ops[index]",
        *(f"        p{k} = place(bases, strides, op[{k + 1}], row, item)" for k in range(OPERANDS)),
    ]
    for code, declared in enumerate(operations):
        lines.append(f"        {'elif' if code else 'if'} op[0] == {code}:  # {declared.name} {declared.source}")
        lines.append(f"            loop{code}({', '.join(declared.arguments)})")
    return "\n".join(lines)


@cache
def dispatch(operations: tuple[Operation, ...]) -> Any:
    """`execute`, compiled when it is first called."""
    namespace: dict[str, Any] = {f"loop{code}": declared.loop for code, declared in enumerate(operations)}
    namespace |= {"np": np, "place": place, "number": number, "key_of": key_of, "__name__": __name__}
    exec(dispatch_source(operations), namespace)
    return njit(nogil=True, error_model="numpy")(namespace["execute"])
