"""The innermost loop of every matrix product: a tile of outputs that stays in vector registers.

A tile has some rows and 16 columns (a panel) or 8 (a narrow panel). For every k it loads one row of B, multiplies it by
one number of A for each of its rows, and adds. An output is the same sum in the same order whatever the number of rows
or lanes, so the plan of a processor changes the time and not the bits. LLVM IR, because numba can neither keep a tile
in registers nor start it from a bias and end it in a ReLU.
"""

from dataclasses import dataclass
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

PANEL, NARROW = 16, 8
"""Columns of a panel and of a narrow one."""
ZERO, ADD, BIAS = range(3)
"""What the sums start from: zero, what is in C, or the bias."""
PLAIN, RELU, MASK = range(3)
"""How they end: as they are, through a ReLU, or as zero where the mask is not positive."""

I32, I64 = ir.IntType(32), ir.IntType(64)


@dataclass(frozen=True)
class Plan:
    """How tiles use a processor's vector registers."""

    lanes: int
    """float32 numbers in a vector."""
    rows: tuple[int, ...]
    """Numbers of rows of a tile of a panel: a product's rows are cut into these, the largest first."""
    narrow_rows: tuple[int, ...] = (8, 4, 2, 1)
    """Likewise of a narrow panel."""

    def registers(self, columns: int, rows: int) -> int:
        """Vector registers of such a tile: its sums, a row of B, and one number of A in all lanes."""
        vectors = columns // self.vector(columns)
        return rows * vectors + vectors + 1

    def vector(self, columns: int) -> int:
        """Lanes of the vectors that hold this many columns."""
        return min(self.lanes, columns)


def plan_for(machine: str, features: str) -> Plan | None:
    """The plan for a processor with these LLVM features; None if it cannot multiply and add in one instruction."""
    found = set(features.split(","))
    if machine.startswith(("aarch64", "arm64")):
        return Plan(lanes=4, rows=(6, 4, 2, 1))  # 32 registers of 128 bits
    if {"+avx512f", "+avx512vl"} <= found:
        return Plan(lanes=16, rows=(12, 6, 3, 1))  # 32 of 512
    if {"+avx2", "+fma"} <= found:
        return Plan(lanes=8, rows=(6, 4, 2, 1))  # 16 of 256
    return None


def host_plan() -> Plan | None:
    """The plan for the processor that numba compiles for."""
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    return plan_for(triple, features)


class _Tile:
    """Writes the code of one tile."""

    def __init__(self, rows: int, columns: int, lanes: int) -> None:
        self.rows, self.lanes, self.vectors = rows, lanes, columns // lanes

    def __call__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, c, ldc, a, row_step, k_step, b, ldb, depth, bias, mask, start, end = arguments
        number = context.get_data_type(signature.args[0])
        self.builder, self.number = builder, number
        self.vector = ir.VectorType(number, self.lanes)
        self.item = signature.args[0].bitwidth // 8
        rows_c = [self._step(c, ldc, r) for r in range(self.rows)]
        sums = self._started(rows_c, bias, start)
        sums = self._summed(sums, a, row_step, k_step, b, ldb, depth)
        rows_mask = [self._step(mask, ldc, r) for r in range(self.rows)]
        self._ended(sums, rows_c, rows_mask, end)
        return context.get_dummy_value()

    def _step(self, address: Any, step: Any, count: int) -> Any:
        """The address `count` steps further on."""
        return self.builder.add(address, self.builder.mul(step, I64(count * self.item)))

    def _vectors(self, address: Any) -> list[Any]:
        """A row of the tile."""
        builder, loaded = self.builder, []
        for v in range(self.vectors):
            place = builder.add(address, I64(v * self.lanes * self.item))
            loaded.append(builder.load(builder.inttoptr(place, self.vector.as_pointer())))
            loaded[-1].align = self.item
        return loaded

    def _zeros(self) -> list[Any]:
        return [ir.Constant(self.vector, [ir.Constant(self.number, 0.0)] * self.lanes)] * self.vectors

    def _chosen(self, which: Any, cases: list[Any], otherwise: Any) -> list[list[Any]]:
        """The rows that one of the cases makes, by the number `which`; each is a function that emits its code."""
        builder = self.builder
        done = builder.append_basic_block()
        blocks = [builder.append_basic_block() for _ in range(len(cases) + 1)]
        switch = builder.switch(which, blocks[-1])
        for number, block in enumerate(blocks[:-1]):
            switch.add_case(I64(number), block)
        made = []
        for case, block in zip([*cases, otherwise], blocks, strict=True):
            builder.position_at_end(block)
            made.append((case(), builder.block))
            builder.branch(done)
        builder.position_at_end(done)
        chosen = []
        for r in range(self.rows):
            chosen.append([builder.phi(self.vector) for _ in range(self.vectors)])
            for rows, block in made:
                for phi, value in zip(chosen[r], rows[r], strict=True):
                    phi.add_incoming(value, block)
        return chosen

    def _started(self, rows_c: list[Any], bias: Any, start: Any) -> list[list[Any]]:
        """What the sums start from."""
        zero = lambda: [self._zeros() for _ in range(self.rows)]  # noqa: E731
        from_c = lambda: [self._vectors(row) for row in rows_c]  # noqa: E731
        from_bias = lambda: [self._vectors(bias)] * self.rows  # noqa: E731
        return self._chosen(start, [zero, from_c], from_bias)

    def _summed(self, sums: list[list[Any]], a: Any, row_step: Any, k_step: Any, b: Any, ldb: Any, depth: Any) -> Any:
        """The sums after all k."""
        builder = self.builder
        before, head, body, done = builder.block, *(builder.append_basic_block() for _ in range(3))
        rows_a = [self._step(a, row_step, r) for r in range(self.rows)]
        step_a, step_b = (builder.mul(step, I64(self.item)) for step in (k_step, ldb))
        builder.branch(head)
        builder.position_at_end(head)
        k, at_a, at_b = (builder.phi(I64) for _ in range(3))
        for phi, first in ((k, I64(0)), (at_a, I64(0)), (at_b, b)):
            phi.add_incoming(first, before)
        held = [[builder.phi(self.vector) for _ in row] for row in sums]
        for phis, row in zip(held, sums, strict=True):
            for phi, value in zip(phis, row, strict=True):
                phi.add_incoming(value, before)
        builder.cbranch(builder.icmp_signed("<", k, depth), body, done)
        builder.position_at_end(body)
        name = f"llvm.fmuladd.v{self.lanes}f{8 * self.item}"
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        multiply_add = cgutils.get_or_insert_function(builder.module, kind, name)
        row_b = self._vectors(at_b)
        for r, phis in enumerate(held):
            one = builder.load(builder.inttoptr(builder.add(rows_a[r], at_a), self.number.as_pointer()))
            every = builder.insert_element(ir.Constant(self.vector, ir.Undefined), one, I32(0))
            every = builder.shuffle_vector(every, every, ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes))
            for phi, vector in zip(phis, row_b, strict=True):
                phi.add_incoming(builder.call(multiply_add, [every, vector, phi]), body)
        k.add_incoming(builder.add(k, I64(1)), body)
        at_a.add_incoming(builder.add(at_a, step_a), body)
        at_b.add_incoming(builder.add(at_b, step_b), body)
        builder.branch(head)
        builder.position_at_end(done)
        return held

    def _ended(self, sums: list[list[Any]], rows_c: list[Any], rows_mask: list[Any], end: Any) -> None:
        """Write the sums to C. A ReLU passes NaN on, so that diverged weights end in a loss that is not finite."""
        builder, zero = self.builder, self._zeros()[0]

        def relu() -> list[list[Any]]:
            return [[builder.select(builder.fcmp_ordered(">", zero, x), zero, x) for x in row] for row in sums]

        def masked() -> list[list[Any]]:
            masks = [self._vectors(address) for address in rows_mask]
            return [
                [builder.select(builder.fcmp_ordered(">", m, zero), x, zero) for x, m in zip(row, mask, strict=True)]
                for row, mask in zip(sums, masks, strict=True)
            ]

        plain = lambda: sums  # noqa: E731
        for row, address in zip(self._chosen(end, [plain, relu], masked), rows_c, strict=True):
            for v, x in enumerate(row):
                place = builder.add(address, I64(v * self.lanes * self.item))
                builder.store(x, builder.inttoptr(place, self.vector.as_pointer())).align = self.item


def make_tile(rows: int, columns: int, lanes: int) -> Any:
    """tile(like, c, ldc, a, row_step, k_step, b, ldb, depth, bias, mask, start, end).

    C = start + A B over `depth` values of k, then `end`. Addresses in bytes; steps in numbers of the type of `like`.
    A is read at a + r row_step + k k_step; rows of B and C are contiguous.
    """
    write = _Tile(rows, columns, lanes)

    @intrinsic
    def tile(_typing, like, c, ldc, a, row_step, k_step, b, ldb, depth, bias, mask, start, end):  # type: ignore[no-untyped-def]
        return types.void(like, *[types.int64] * 12), write

    return tile
