"""What an update could take at best: its bare matrix products, and the processor's peak.

The products are those of one update of all agents: the same shapes, preallocated, and nothing else. Three critic
forward passes (target, Q, P), one critic backward for all weights and the hidden layers' inputs, one critic backward to
the own actions, two actor forwards, one actor backward. No bias, ReLU, noise, optimizer or gather.
As in the formulas, or `turned`: narrow products transposed, which is faster.
Shape letters: N agents, B batch rows, O observation, A action, J joint, H hidden (two layers of it).
"""

import functools
import time
from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from shoal.compiled import njit
from shoal.native.tile import host_plan
from shoal.system.tiles import I32, I64, call, loop, splat


class BareProducts:
    """Call it to run the products once."""

    def __init__(
        self, agents: int, observation: int, action: int, batch: int = 1024, hidden: int = 64, turned: bool = False
    ) -> None:
        self.turned = turned
        n, b, o, a, h = agents, batch, observation, action, hidden
        j = n * (o + a)
        self.joint, self.first = torch.rand(b, j), torch.rand(j, n * h)
        self.observation = torch.rand(n, b, o)
        self.hidden = torch.rand(n, b, h)
        self.wide = torch.rand(b, n * h)
        self.second, self.own, self.logits = torch.rand(n, h, h), torch.rand(n, a, h), torch.rand(n, b, a)
        self.q, self.third = torch.rand(n, b, 1), torch.rand(n, h, 1)
        self.actor_first, self.actor_third = torch.rand(n, o, h), torch.rand(n, h, a)
        self.out_wide, self.out_hidden = torch.empty(b, n * h), torch.empty(n, b, h)
        self.out_first = torch.empty(j, n * h)
        self.out_second, self.out_third, self.out_q = torch.empty(n, h, h), torch.empty(n, h, 1), torch.empty(n, b, 1)
        self.out_action = torch.empty(n, b, a)
        self.out_actor_first, self.out_actor_third = torch.empty(n, o, h), torch.empty(n, h, a)

    @property
    def multiply_adds(self) -> int:
        """How many the products have."""
        (batch, joint), wide = self.joint.shape, self.first.shape[1]
        n, _, observation = self.observation.shape
        hidden, action = self.second.shape[1], self.own.shape[1]
        narrow, square = n * hidden * action, n * hidden * hidden
        critics = 4 * joint * wide + 6 * square + 6 * n * hidden + narrow
        actors = 3 * n * observation * hidden + 4 * square + 4 * narrow
        return batch * (critics + actors)

    @torch.no_grad()
    def __call__(self) -> None:
        """All products of one update."""
        for _ in range(3):  # critics forward: target, Q, P
            torch.mm(self.joint, self.first, out=self.out_wide)
            torch.bmm(self.hidden, self.second, out=self.out_hidden)
            self._narrow(self.hidden, self.third, self.out_q)
        # critics backward: all weights, and the hidden layers' inputs
        self._hidden_backward()
        self._narrow(self.hidden.mT, self.q, self.out_third)
        torch.bmm(self.hidden.mT, self.hidden, out=self.out_second)
        torch.mm(self.joint.T, self.wide, out=self.out_first)
        # critics backward to the own actions
        self._hidden_backward()
        self._narrow(self.hidden, self.own.mT, self.out_action)
        for _ in range(2):  # actors forward: next actions, fresh actions
            torch.bmm(self.observation, self.actor_first, out=self.out_hidden)
            torch.bmm(self.hidden, self.second, out=self.out_hidden)
            self._narrow(self.hidden, self.actor_third, self.out_action)
        # actors backward
        self._narrow(self.hidden.mT, self.logits, self.out_actor_third)
        torch.bmm(self.logits, self.actor_third.mT, out=self.out_hidden)
        torch.bmm(self.hidden.mT, self.hidden, out=self.out_second)
        torch.bmm(self.hidden, self.second.mT, out=self.out_hidden)
        torch.bmm(self.observation.mT, self.hidden, out=self.out_actor_first)

    def _hidden_backward(self) -> None:
        if self.turned:  # inner dimension 1: an elementwise multiplication
            torch.mul(self.q, self.third.mT, out=self.out_hidden)
        else:
            torch.bmm(self.q, self.third.mT, out=self.out_hidden)
        torch.bmm(self.hidden, self.second.mT, out=self.out_hidden)

    def _narrow(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """A product whose result has few columns."""
        if self.turned:
            torch.bmm(weight.mT, x.mT, out=out.view(out.shape[0], out.shape[2], out.shape[1]))
        else:
            torch.bmm(x, weight, out=out)


# ---- the processor's peak: a loop that never leaves the registers --------------------------------------------------

SUMS = 12  # sums at a time: more than the instruction's latency times the number of units
_plan = host_plan()
LANES = 4 if _plan is None else _plan.lanes


@intrinsic
def _spin(_typing: Any, count: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        name, every = f"llvm.fmuladd.v{LANES}f32", splat(builder, arguments[1], LANES)

        def multiply_add(_: Any, sums: list[Any]) -> list[Any]:
            return [call(builder, name, every.type, total, every, every) for total in sums]

        sums = loop(builder, I64(0), arguments[0], 1, [every] * SUMS, multiply_add)
        return builder.extract_element(functools.reduce(builder.fadd, sums), I32(0))

    return types.float32(types.int64, types.float32), generate


_run: Any = _spin


@njit(nogil=True)
def spin(count, x):  # type: ignore[no-untyped-def]
    """`count` multiply-adds of each lane of each sum."""
    return _run(count, x)


def peak(seconds: float = 0.2) -> float:
    """Multiply-adds per second of one thread: the best of several short runs."""
    count, half, best = 20_000, np.float32(0.5), 0.0
    spin(count, half)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        spin(count, half)
        best = max(best, SUMS * LANES * count / (time.perf_counter() - start))
    return best
