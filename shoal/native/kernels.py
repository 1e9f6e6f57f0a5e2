"""The operations that pieces of work are made of: products, losses, Adam, and those of `policy_kernels.py`.

Each is declared once (`operations.py` says how). They know nothing of agents or algorithms: `maddpg.py` and `masac.py`
say which follows which. Arrays are flat; `ld` is the distance between two rows.
Shape letters: B batch rows (here those of a chunk), H hidden units.
"""

import math
from typing import Any

from shoal.compiled import njit
from shoal.native import policy_kernels
from shoal.native.arithmetic import exp, number
from shoal.native.machine import read_clock, view
from shoal.native.operations import (
    NOWHERE,
    OFFSET_BITS,
    Changes,
    Count,
    Double,
    Operation,
    Reads,
    Real,
    RowCount,
    Writes,
    operation,
)
from shoal.native.tile import ADD, NARROW, PANEL, PLAIN, ZERO, Plan, host_plan, make_tile

FAST = {"reassoc", "contract", "nsz"}
"""Sums may be vectorised: the order is fixed when they are compiled, so results are reproducible."""
DEPTH = 384  # values of k for which a panel of B stays in the first-level cache


def _make_panel(columns: int, lanes: int, sizes: tuple[int, ...]) -> Any:
    """A function that computes so many columns of a product, from row r on: tiles of the first size, then smaller."""
    rows, smaller = sizes[0], sizes[1:]
    tile, finish = make_tile(rows, columns, lanes), _make_panel(columns, lanes, smaller) if smaller else None

    @njit(nogil=True, error_model="numpy")
    def panel(r, like, item, c, ldc, a, row_step, k_step, b, ldb, m, depth, bias, mask, start, end):  # type: ignore[no-untyped-def]
        while r + rows <= m:
            at, at_a = r * ldc * item, a + r * row_step * item
            tile(like, c + at, ldc, at_a, row_step, k_step, b, ldb, depth, bias, mask + at, start, end)
            r += rows
        if finish is not None:
            finish(r, like, item, c, ldc, a, row_step, k_step, b, ldb, m, depth, bias, mask, start, end)

    return panel


_plan = host_plan() or Plan(lanes=4, rows=(6, 4, 2, 1))  # without a plan nothing of this is ever compiled
_panel = _make_panel(PANEL, _plan.vector(PANEL), _plan.rows)
_narrow_panel = _make_panel(NARROW, _plan.vector(NARROW), _plan.narrow_rows)


@operation()
def product(  # type: ignore[no-untyped-def]
    like, item, c: Changes, ld_c, a: Reads, b: Reads, ld_b, row_step: Count, k_step: Count, k: RowCount, columns: Count,
    m: RowCount = NOWHERE, c_rows: Count = 0, b_rows: Count = 0, b_first: Count = 0, bias: Reads = NOWHERE,
    mask: Reads = NOWHERE, start: Count = ZERO, end: Count = PLAIN,
):  # fmt: skip
    """C = start + A B, then end. A is (m, k), any steps; B (k, columns); C (m, columns); columns a multiple of 8.

    B and C are rows, or in panels where their `ld` is 0, as that of a place is: 16 columns of all rows (`b_rows`,
    `c_rows`) after the other, the last 8 by themselves. Of B in panels the product takes rows from `b_first` on.
    """
    k0 = 0
    while True:
        depth = min(DEPTH, k - k0)
        first = start if k0 == 0 else ADD
        last = end if k0 + depth == k else PLAIN
        at_a, row = a + k0 * k_step * item, b_first + k0
        for u in range(0, columns, PANEL):
            width = PANEL if u + PANEL <= columns else NARROW
            step_b, step_c = ld_b or width, ld_c or width
            at_b = b + (row * ld_b + u if ld_b else u * b_rows + row * width) * item
            at_c = u if ld_c else u * c_rows
            if width == PANEL:
                _panel(0, like, item, c + at_c * item, step_c, at_a, row_step, k_step, at_b, step_b, m, depth,
                       bias + u * item, mask + at_c * item, first, last)  # fmt: skip
            else:
                _narrow_panel(0, like, item, c + at_c * item, step_c, at_a, row_step, k_step, at_b, step_b, m, depth,
                              bias + u * item, mask + at_c * item, first, last)  # fmt: skip
        k0 += depth
        if k0 >= k:
            break


@operation(fastmath={"contract"})
def column_sums(like, item, rows, out: Changes, x: Reads, ld_x, width: Count, by: Reads, step: Count):  # type: ignore[no-untyped-def]
    """out[u] += sum over rows r of by[r step] x[r, u]; four rows at a time."""
    total, weight = view(like, out, width), view(like, by, rows)
    r = 0
    while r + 4 <= rows:
        x0, x1 = view(like, x + r * ld_x * item, width), view(like, x + (r + 1) * ld_x * item, width)
        x2, x3 = view(like, x + (r + 2) * ld_x * item, width), view(like, x + (r + 3) * ld_x * item, width)
        w0, w1, w2, w3 = weight[r * step], weight[(r + 1) * step], weight[(r + 2) * step], weight[(r + 3) * step]
        for u in range(width):
            total[u] += (w0 * x0[u] + w1 * x1[u]) + (w2 * x2[u] + w3 * x3[u])
        r += 4
    while r < rows:
        row, w = view(like, x + r * ld_x * item, width), weight[r * step]
        for u in range(width):
            total[u] += w * row[u]
        r += 1


@operation(fastmath=FAST)
def dots(like, item, rows, out: Writes, x: Reads, ld_x, weight: Reads, bias: Reads):  # type: ignore[no-untyped-def]
    """out[r] = bias + x[r] · weight: the one output of a critic."""
    q, w, b = view(like, out, rows), view(like, weight, ld_x), view(like, bias, 1)[0]
    for r in range(rows):
        row = view(like, x + r * ld_x * item, ld_x)
        total = like
        for u in range(ld_x):
            total += row[u] * w[u]
        q[r] = total + b


@operation()
def copy(like, item, rows, target: Writes, ld_target, width_target, source: Reads, ld_source, by: Reads = NOWHERE):  # type: ignore[no-untyped-def]
    """target[r, :width_target] = source[r, :width_target], times by[r] if there is one."""
    for r in range(rows):
        to = view(like, target + r * ld_target * item, width_target)
        row = view(like, source + r * ld_source * item, width_target)
        if by:
            factor = view(like, by + r * item, 1)[0]
            for u in range(width_target):
                to[u] = row[u] * factor
        else:
            for u in range(width_target):
                to[u] = row[u]


@operation()
def add(  # type: ignore[no-untyped-def]
    like, item, rows, target: Writes, ld_target, x: Reads, ld_x, y: Reads, ld_y, relu: Count = 0,
    mask: Reads = NOWHERE, ld_mask=0,
):  # fmt: skip
    """target[r] = x[r] + y[r], or x[r] if y is absent; or 0 where that is negative if there is a ReLU, or where the
    mask is not positive. Padding is added, too."""
    for r in range(rows):
        to, left = view(like, target + r * ld_target * item, ld_target), view(like, x + r * ld_x * item, ld_target)
        if y:
            right = view(like, y + r * ld_y * item, ld_target)
            for u in range(ld_target):
                total = left[u] + right[u]
                to[u] = total if not relu or total > 0 else number(like, 0.0)
        else:
            for u in range(ld_target):
                to[u] = left[u]
        if mask:
            kept = view(like, mask + r * ld_mask * item, ld_target)
            for u in range(ld_target):
                to[u] = to[u] if kept[u] > 0 else number(like, 0.0)


@operation(fastmath={"contract"})
def scaled_sum(  # type: ignore[no-untyped-def]
    like, item, rows, target: Writes, ld_target, x: Reads, ld_x, step: Count, count: Count, factor: Real
):
    """target[r] = factor times the sum of x[r], of so many blocks of rows that begin `step` numbers after another;
    padding, too."""
    for r in range(rows):
        to = view(like, target + r * ld_target * item, ld_target)
        first = x + r * ld_x * item
        row = view(like, first, ld_target)
        for u in range(ld_target):
            to[u] = row[u]
        for k in range(1, count):
            row = view(like, first + k * step * item, ld_target)
            for u in range(ld_target):
                to[u] += row[u]
        for u in range(ld_target):
            to[u] *= factor


@operation()
def subtract(like, item, rows, target: Writes, ld_target, width_target, x: Reads, ld_x, y: Reads, ld_y):  # type: ignore[no-untyped-def]
    """target[r, :width_target] = x[r, :width_target] - y[r, :width_target]."""
    for r in range(rows):
        to = view(like, target + r * ld_target * item, width_target)
        left, right = view(like, x + r * ld_x * item, width_target), view(like, y + r * ld_y * item, width_target)
        for u in range(width_target):
            to[u] = left[u] - right[u]


# ---- targets and losses ---------------------------------------------------------------------------------------------


@operation(fastmath={"contract"})
def back_up(  # type: ignore[no-untyped-def]
    like, rows, target: Writes, reward: Reads, ld_reward, bootstrap: Reads, q: Reads, other: Reads = NOWHERE,
    entropy: Reads = NOWHERE, ld_entropy=0, alpha: Reads = NOWHERE,
):  # fmt: skip
    """target = reward + bootstrap (the smaller of q and other + alpha entropy); `other` or `entropy` may be absent."""
    y, next_q = view(like, target, rows), view(like, q, rows)
    r, b = view(like, reward, rows), view(like, bootstrap, rows)
    for k in range(rows):
        value = next_q[k]
        if other:
            value = min(value, view(like, other, rows)[k])
        if entropy:
            value += view(like, alpha, 1)[0] * view(like, entropy, rows)[k * ld_entropy]
        y[k] = r[k * ld_reward] + b[k] * value


@operation(fastmath=FAST)
def squared_error(like, rows, gradient: Writes, q: Reads, target: Reads, weight: Reads, loss: Changes):  # type: ignore[no-untyped-def]
    """gradient = 2 weight (q - target); loss += weight (q - target)^2."""
    g, w, total = view(like, gradient, rows), view(like, weight, rows), view(like, loss, 1)
    x, y = view(like, q, rows), view(like, target, rows)
    added = like
    for r in range(rows):
        error = x[r] - y[r]
        scaled = w[r] * error
        added += scaled * error
        g[r] = scaled + scaled
    total[0] += added


@operation(fastmath={"contract"})
def policy_gradient(  # type: ignore[no-untyped-def]
    like, rows, weight: Reads, loss: Changes, gradient: Writes, q: Reads, other_gradient: Writes = NOWHERE,
    other: Reads = NOWHERE,
):  # fmt: skip
    """Gradients of -weight q, or of the smaller of two (half each where they are equal); loss -= weight q."""
    g, x, w, total = view(like, gradient, rows), view(like, q, rows), view(like, weight, rows), view(like, loss, 1)
    half = number(like, 0.5)
    added = like
    for r in range(rows):
        if other:
            y, h = view(like, other, rows), view(like, other_gradient, rows)
            added += w[r] * min(x[r], y[r])
            if x[r] == y[r]:
                g[r] = h[r] = -half * w[r]
            else:
                g[r] = -w[r] if x[r] < y[r] else like
                h[r] = like if x[r] < y[r] else -w[r]
        else:
            added += w[r] * x[r]
            g[r] = -w[r]
    total[0] -= added


@operation(fastmath=FAST)
def weighted_sum(  # type: ignore[no-untyped-def]
    like, rows, total: Changes, x: Reads, weight: Reads, factor: Reads = NOWHERE, minus: Real = 0.0,
    count: RowCount = NOWHERE,
):  # fmt: skip
    """total += factor * sum of weight (x - minus), over the rows or over so many numbers."""
    y, w, out = view(like, x, count), view(like, weight, count), view(like, total, 1)
    added = like
    for r in range(count):
        added += w[r] * (y[r] - minus)
    out[0] += added * view(like, factor, 1)[0] if factor else added


# ---- steps ----------------------------------------------------------------------------------------------------------


@operation()
def clear(like, at: Writes, size: Count):  # type: ignore[no-untyped-def]
    """Set to zero."""
    view(like, at, size)[:] = like


@operation()
def gather(like, bases, slots, into: Count, slot: Count, parts: Count, size: Count):  # type: ignore[no-untyped-def]
    """Add up the gradients in these slots; from here on they are the buffer of the operand `into`."""
    bases[into >> OFFSET_BITS] = slots[slot]
    total = view(like, slots[slot], size)
    for part in range(1, parts):
        more = view(like, slots[slot + part], size)
        for k in range(size):
            total[k] += more[k]


@njit(nogil=True, error_model="numpy", fastmath=FAST)
def clip_scale(like, gradient, size, limit):  # type: ignore[no-untyped-def]
    """What a gradient is multiplied by so that its norm is at most `limit`; 1 if that is 0."""
    if limit <= like:
        return number(like, 1.0)
    g, square = view(like, gradient, size), like
    for k in range(size):
        square += g[k] * g[k]
    return limit / max(math.sqrt(square), limit)


@operation(fastmath={"contract"})
def adam(  # type: ignore[no-untyped-def]
    like, moment, x: Changes, gradient: Changes, mean: Changes, square: Changes, size: Count, clip: Real, rate: Double
):
    """One step of Adam, the `moment`th, on `size` numbers; the gradient is clipped to the norm `clip`."""
    scale = clip_scale(like, gradient, size, clip)
    w, g, m, v = view(like, x, size), view(like, gradient, size), view(like, mean, size), view(like, square, size)
    root = number(like, 1.0 / (1.0 - 0.999**moment) ** 0.5)
    pace, eps = number(like, rate / (1.0 - 0.9**moment)), number(like, 1e-8)
    tenth, keep, take = number(like, 1.0 - 0.9), number(like, 0.999), number(like, 1.0 - 0.999)
    for k in range(size):
        d = g[k] * scale
        a = m[k] + tenth * (d - m[k])
        b = keep * v[k] + take * d * d
        m[k] = a
        v[k] = b
        g[k] = pace * a / (math.sqrt(b) * root + eps)
    for k in range(size):
        w[k] -= g[k]


@operation(fastmath={"contract"})
def move(like, moment, target: Changes, online: Reads, size: Count, period: Count, tau: Real):  # type: ignore[no-untyped-def]
    """target <- (1 - tau) target + tau online, once in `period` updates."""
    if moment % period:
        return
    t, x = view(like, target, size), view(like, online, size)
    for k in range(size):
        t[k] += tau * (x[k] - t[k])


@operation()
def transpose(  # type: ignore[no-untyped-def]
    like, item, out: Writes, x: Reads, x_rows: Count, first: Count, count: Count, columns: Count
):
    """out = panels of the transposed (columns, count) of rows from `first` on of x, in panels of `x_rows` rows."""
    wide = (count + NARROW - 1) // NARROW * NARROW
    wide_x = (columns + NARROW - 1) // NARROW * NARROW
    to, source = view(like, out, columns * wide), view(like, x, x_rows * wide_x)
    for u in range(0, wide_x, PANEL):
        width = PANEL if u + PANEL <= wide_x else NARROW
        for r in range(count):
            at = u * x_rows + (first + r) * width
            p = r // PANEL * PANEL
            step = PANEL if p + PANEL <= wide else NARROW
            place = p * columns + u * step + r - p
            for k in range(min(width, columns - u)):
                to[place + k * step] = source[at + k]


@operation()
def exponential(like, out: Writes, x: Reads):  # type: ignore[no-untyped-def]
    """out = exp(x), one number."""
    view(like, out, 1)[0] = exp(view(like, x, 1)[0])


@operation()
def begin_phase(clocks, phase: Count):  # type: ignore[no-untyped-def]
    """From here on the thread's time belongs to this phase."""
    read_clock(clocks, phase)


OPERATIONS = tuple(
    declared for declared in (vars(policy_kernels) | globals()).values() if isinstance(declared, Operation)
)
"""All of them; an opcode is a place in here."""
