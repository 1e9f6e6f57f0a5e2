"""The innermost loop of every matrix product: a tile of outputs that stays in vector registers.

A tile has some rows and 16 columns (a panel) or 8 (a narrow panel). For every k it loads one row of B, multiplies it by
one number of A for each of its rows, and adds. An output is the same sum in the same order whatever the number of rows
or lanes, so the plan of a processor changes the time and not the bits. LLVM IR, because numba can neither keep a tile
in registers nor start it from a bias and end it in a ReLU.
"""

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from shoal.system.processors import vector_features
from shoal.system.tiles import I64, call, load, loop, splat, store

PANEL, NARROW = 16, 8  # columns of a panel and of a narrow one
ZERO, ADD, BIAS = range(3)  # what the sums start from: zero, what is in C, or the bias
PLAIN, RELU, MASK = range(3)  # how they end: as they are, through a ReLU, or as zero where the mask is not positive


@dataclass(frozen=True)
class Plan:
    """How tiles use a processor's vector registers."""

    lanes: int
    """float32 numbers in a vector."""
    rows: tuple[int, ...]
    """Numbers of rows of a tile of a panel: a product's rows are cut into these, the largest first."""
    narrow_rows: tuple[int, ...] = (8, 4, 2, 1)
    """Likewise of a narrow panel."""

    def vector(self, columns: int) -> int:
        """Lanes of the vectors that hold this many columns."""
        return min(self.lanes, columns)


def plan_for(features: Set[str]) -> Plan | None:
    """The plan for a processor with these features; None if it cannot multiply and add in one instruction."""
    if "arm64" in features:
        return Plan(lanes=4, rows=(6, 4, 2, 1))  # 32 registers of 128 bits
    if {"avx512f", "avx512vl"} <= features:
        return Plan(lanes=16, rows=(12, 6, 3, 1))  # 32 of 512
    if {"avx2", "fma"} <= features:
        return Plan(lanes=8, rows=(6, 4, 2, 1))  # 16 of 256
    return None


def host_plan() -> Plan | None:
    """The plan for the processor that numba compiles for."""
    return plan_for(vector_features())


class _Tile:
    """Writes the code of one tile, row by row and vector by vector."""

    def __init__(self, rows: int, columns: int, lanes: int) -> None:
        self.rows, self.lanes, self.vectors = rows, lanes, columns // lanes

    def __call__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, c, ldc, a, row_step, k_step, b, ldb, depth, bias, mask, start, end = arguments
        self.builder, self.number = builder, context.get_data_type(signature.args[0])
        self.vector, self.item = ir.VectorType(self.number, self.lanes), signature.args[0].bitwidth // 8
        sums = self._started(c, ldc, bias, start)
        sums = self._summed(sums, a, row_step, k_step, b, ldb, depth)
        sums = self._ended(sums, mask, ldc, end)
        for value, place in zip(sums, self._places(c, ldc), strict=True):
            store(builder, value, place)
        return context.get_dummy_value()

    def _step(self, address: Any, step: Any, count: int) -> Any:
        """The address `count` steps further on."""
        return self.builder.add(address, self.builder.mul(step, I64(count * self.item)))

    def _row(self, address: Any) -> list[Any]:
        """The addresses of a row's vectors."""
        return [self.builder.add(address, I64(v * self.lanes * self.item)) for v in range(self.vectors)]

    def _places(self, address: Any, ld: Any) -> list[Any]:
        """The addresses of all vectors of the tile."""
        return [place for r in range(self.rows) for place in self._row(self._step(address, ld, r))]

    def _loaded(self, places: list[Any]) -> list[Any]:
        return [load(self.builder, place, self.vector) for place in places]

    @property
    def _zero(self) -> Any:
        return ir.Constant(self.vector, [ir.Constant(self.number, 0.0)] * self.lanes)

    def _chosen(self, which: Any, *cases: Any) -> list[Any]:
        """The vectors that a case makes, by the number `which` or else the last; each is a function that emits code."""
        builder = self.builder
        done = builder.append_basic_block()
        blocks = [builder.append_basic_block() for _ in cases]
        switch = builder.switch(which, blocks[-1])
        for number, block in enumerate(blocks[:-1]):
            switch.add_case(I64(number), block)
        results = []
        for case, block in zip(cases, blocks, strict=True):
            builder.position_at_end(block)
            results.append((case(), builder.block))
            builder.branch(done)
        builder.position_at_end(done)
        chosen = [builder.phi(self.vector) for _ in range(self.rows * self.vectors)]
        for vectors, block in results:
            for phi, value in zip(chosen, vectors, strict=True):
                phi.add_incoming(value, block)
        return chosen

    def _started(self, c: Any, ldc: Any, bias: Any, start: Any) -> list[Any]:
        """What the sums start from: ZERO, ADD, otherwise BIAS."""
        zeros, added = lambda: [self._zero] * self.rows * self.vectors, lambda: self._loaded(self._places(c, ldc))
        return self._chosen(start, zeros, added, lambda: self._loaded(self._row(bias)) * self.rows)

    def _summed(self, sums: list[Any], a: Any, row_step: Any, k_step: Any, b: Any, ldb: Any, depth: Any) -> list[Any]:
        """The sums after all k."""
        builder, name = self.builder, f"llvm.fmuladd.v{self.lanes}f{8 * self.item}"
        rows_a = [self._step(a, row_step, r) for r in range(self.rows)]
        step_a, step_b = (builder.mul(step, I64(self.item)) for step in (k_step, ldb))

        def add_products(_: Any, carried: list[Any]) -> list[Any]:
            at_a, at_b, *totals = carried
            row_b, after = self._loaded(self._row(at_b)), []
            for r, row_a in enumerate(rows_a):
                every = splat(builder, load(builder, builder.add(row_a, at_a), self.number), self.lanes)
                for total, vector in zip(totals[r * self.vectors :], row_b, strict=False):
                    after.append(call(builder, name, self.vector, every, vector, total))
            return [builder.add(at_a, step_a), builder.add(at_b, step_b), *after]

        return loop(builder, I64(0), depth, 1, [I64(0), b, *sums], add_products)[2:]

    def _ended(self, sums: list[Any], mask: Any, ld: Any, end: Any) -> list[Any]:
        """The outputs. A ReLU passes NaN on, so that diverged weights end in a loss that is not finite."""
        builder, zero = self.builder, self._zero

        def relu() -> list[Any]:
            return [builder.select(builder.fcmp_ordered(">", zero, x), zero, x) for x in sums]

        def masked() -> list[Any]:
            pairs = zip(sums, self._loaded(self._places(mask, ld)), strict=True)
            return [builder.select(builder.fcmp_ordered(">", m, zero), x, zero) for x, m in pairs]

        return self._chosen(end, lambda: sums, relu, masked)


def make_tile(rows: int, columns: int, lanes: int) -> Any:
    """tile(like, c, ldc, a, row_step, k_step, b, ldb, depth, bias, mask, start, end).

    C = start + A B over `depth` values of k, then `end`. Addresses in bytes; steps in numbers of the type of `like`.
    A is read at a + r row_step + k k_step; rows of B and C are contiguous.
    """

    @intrinsic
    def tile(_typing, like, c, ldc, a, row_step, k_step, b, ldb, depth, bias, mask, start, end):  # type: ignore[no-untyped-def]
        return types.void(like, *[types.int64] * 12), _Tile(rows, columns, lanes)

    return tile
