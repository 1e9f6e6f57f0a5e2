"""Counters of an emulation: products by function and role, and the events in them."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

from shoal.numerics.emulation.roles import ROLES
from shoal.numerics.mac.matmul import MacStats

NOTHING = MacStats(0, 0, 0, 0)


class Covered(NamedTuple):
    """A torch function in one role: whether it was emulated, number of calls and of MACs."""

    op: str
    role: str
    calls: int
    macs: int | None  # None for a plain function whose products cannot be counted from outside
    emulated: bool


class Coverage(list[Covered]):
    """Rows of `Covered`; as a string, a table."""

    def __init__(self, rows: Iterable[Covered] = ()) -> None:
        super().__init__(sorted(rows, key=lambda row: (not row.emulated, row.op, row.role)))

    def __str__(self) -> str:
        """A header, then one line per row; plain float32 last."""
        cells = [("function", "role", "calls", "MACs", "arithmetic")]
        for row in self:
            macs = "–" if row.macs is None else f"{row.macs:,}"
            cells.append((row.op, row.role, f"{row.calls:,}", macs, "emulated" if row.emulated else "plain"))
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if n in (2, 3) else cell.ljust(width)
                for n, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in cells
        )


class Counts:
    """Thread-safe counters of products and events."""

    def __init__(self) -> None:
        self.by_role = dict.fromkeys(ROLES, NOTHING)
        self.by_layer: dict[tuple[str, str], MacStats] = {}
        """Products and roundings by (layer, role), where layers have names."""
        self._rows: dict[tuple[str, str, bool], tuple[int, int | None]] = {}
        self._calls = 0
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Everything except the lock, so that wrapped modules can be copied and saved."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def next_call(self) -> int:
        """The number of this product, from 0; with the seed it determines the random bits."""
        with self._lock:
            self._calls += 1
            return self._calls - 1

    def add(self, op: str, role: str, macs: int | None, happened: MacStats | None, layer: str = "") -> None:
        """Count a product; `happened` is None for a plain one."""
        key = (op, role, happened is not None)
        with self._lock:
            calls, before = self._rows.get(key, (0, 0))
            self._rows[key] = calls + 1, None if macs is None or before is None else before + macs
            if happened is not None:
                self.by_role[role] += happened
        if happened is not None and layer:
            self.add_to_layer(layer, role, happened)

    def add_to_layer(self, layer: str, role: str, happened: MacStats) -> None:
        """Count a product, or the rounding of a tensor, whose `macs` are numbers."""
        with self._lock:
            self.by_layer[layer, role] = self.by_layer.get((layer, role), NOTHING) + happened

    def state(self) -> dict[str, list[int]]:
        """Every count by name; products that cannot be counted are -1."""
        with self._lock:
            rows = {
                f"function.{op}.{role}.{int(emulated)}": [calls, -1 if macs is None else macs]
                for (op, role, emulated), (calls, macs) in self._rows.items()
            }
            roles = {f"role.{name}": [*astuple(self.by_role[name])] for name in ROLES}
            layers = {f"layer.{role}.{layer}": [*astuple(n)] for (layer, role), n in self.by_layer.items()}
            return {"calls": [self._calls]} | roles | layers | rows

    def load_state(self, state: Mapping[str, Sequence[int]]) -> None:
        """Continue from what `state` returned."""
        with self._lock:
            (self._calls,) = state["calls"]
            self._rows, self.by_layer = {}, {}
            for name, counts in state.items():
                kind, _, rest = name.partition(".")
                if kind == "role":
                    self.by_role[rest] = MacStats(*counts)
                elif kind == "layer":
                    role, _, layer = rest.partition(".")
                    self.by_layer[layer, role] = MacStats(*counts)
                elif kind == "function":
                    op, role, emulated = rest.rsplit(".", 2)
                    calls, macs = counts
                    self._rows[op, role, emulated == "1"] = calls, None if macs < 0 else macs

    def coverage(self) -> Coverage:
        """One row per function and role."""
        return Coverage(
            Covered(op, role, calls, macs, emulated) for (op, role, emulated), (calls, macs) in self._rows.items()
        )
