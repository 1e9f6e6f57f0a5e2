"""The operations that pieces of work are made of: products, samples of policies and their gradients, losses, Adam.

Each is declared once, here (`operations.py` says how). They know nothing of agents or algorithms: `maddpg.py` and
`masac.py` say which follows which. Arrays are flat; `ld` is the distance between two rows. Columns from `size` on are
padding, and stay zero.
Shape letters: B batch rows (here those of a chunk), A action, H hidden units.
"""

import math
from typing import Any

from shoal.compiled import njit
from shoal.native.arithmetic import exp, gumbel_exponential, log, normal, number, softplus, tanh
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
    Stream,
    Writes,
    operation,
)  # fmt: skip
from shoal.native.tile import ADD, NARROW, PANEL, PLAIN, Plan, host_plan, make_tile

FAST = {"reassoc", "contract", "nsz"}
"""Sums may be vectorised: the order is fixed when they are compiled, so results are reproducible."""
DEPTH = 384
"""Values of k for which a panel of B stays in the first-level cache."""


def _make_panel(columns: int, lanes: int, sizes: tuple[int, ...]) -> Any:
    """A function that computes so many columns of a product, for all rows: tiles of the largest size, then smaller."""
    rows0, rows1, rows2, rows3 = sizes
    tile0, tile1, tile2, tile3 = (make_tile(rows, columns, lanes) for rows in sizes)

    @njit(nogil=True, error_model="numpy")
    def panel(like, item, c, ldc, a, row_step, k_step, b, ldb, m, depth, bias, mask, start, end):  # type: ignore[no-untyped-def]
        r = 0
        while r + rows0 <= m:
            at, at_a = r * ldc * item, a + r * row_step * item
            tile0(like, c + at, ldc, at_a, row_step, k_step, b, ldb, depth, bias, mask + at, start, end)
            r += rows0
        while r + rows1 <= m:
            at, at_a = r * ldc * item, a + r * row_step * item
            tile1(like, c + at, ldc, at_a, row_step, k_step, b, ldb, depth, bias, mask + at, start, end)
            r += rows1
        while r + rows2 <= m:
            at, at_a = r * ldc * item, a + r * row_step * item
            tile2(like, c + at, ldc, at_a, row_step, k_step, b, ldb, depth, bias, mask + at, start, end)
            r += rows2
        while r < m:
            at, at_a = r * ldc * item, a + r * row_step * item
            tile3(like, c + at, ldc, at_a, row_step, k_step, b, ldb, depth, bias, mask + at, start, end)
            r += rows3

    return panel


_plan = host_plan() or Plan(lanes=4, rows=(6, 4, 2, 1))  # without a plan nothing of this is ever compiled
_panel = _make_panel(PANEL, _plan.vector(PANEL), _plan.rows)
_narrow_panel = _make_panel(NARROW, _plan.vector(NARROW), _plan.narrow_rows)


@operation()
def product(  # type: ignore[no-untyped-def]
    like, item, c: Changes, ldc: Count, c_rows: Count, a: Reads, row_step: Count, k_step: Count,
    b: Reads, ldb: Count, b_rows: Count, b_first: Count, m: RowCount, k: RowCount, columns: Count,
    bias: Reads, mask: Reads, start: Count, end: Count,
):  # fmt: skip
    """C = start + A B, then end. A is (m, k), any steps; B (k, columns); C (m, columns); columns a multiple of 8.

    B and C are rows `ldb` and `ldc` apart, or in panels where that is 0: 16 columns of all rows (`b_rows`, `c_rows`)
    after the other, the last 8 columns by themselves. Of B in panels the product takes rows from `b_first` on.
    """
    k0 = 0
    while True:
        depth = min(DEPTH, k - k0)
        first = start if k0 == 0 else ADD
        last = end if k0 + depth == k else PLAIN
        at_a, row = a + k0 * k_step * item, b_first + k0
        for u in range(0, columns, PANEL):
            width = PANEL if u + PANEL <= columns else NARROW
            step_b, step_c = ldb or width, ldc or width
            at_b = b + (row * ldb + u if ldb else u * b_rows + row * width) * item
            at_c = u if ldc else u * c_rows
            if width == PANEL:
                _panel(like, item, c + at_c * item, step_c, at_a, row_step, k_step, at_b, step_b, m, depth,
                       bias + u * item, mask + at_c * item, first, last)  # fmt: skip
            else:
                _narrow_panel(like, item, c + at_c * item, step_c, at_a, row_step, k_step, at_b, step_b, m, depth,
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
        to, row = (
            view(like, target + r * ld_target * item, width_target),
            view(like, source + r * ld_source * item, width_target),
        )
        if by:
            factor = view(like, by + r * item, 1)[0]
            for u in range(width_target):
                to[u] = row[u] * factor
        else:
            for u in range(width_target):
                to[u] = row[u]


@operation()
def subtract(like, item, rows, target: Writes, ld_target, width_target, x: Reads, ld_x, y: Reads, ld_y):  # type: ignore[no-untyped-def]
    """target[r, :width_target] = x[r, :width_target] - y[r, :width_target]."""
    for r in range(rows):
        to = view(like, target + r * ld_target * item, width_target)
        left, right = view(like, x + r * ld_x * item, width_target), view(like, y + r * ld_y * item, width_target)
        for u in range(width_target):
            to[u] = left[u] - right[u]


# ---- choices --------------------------------------------------------------------------------------------------------


@operation(fastmath={"contract"})
def gumbel_softmax(  # type: ignore[no-untyped-def]
    like, row, rows, action: Writes, soft: Writes, logits: Reads, ld_logits, size: Count, key: Stream, hard: Count
):
    """soft = softmax(logits + Gumbel noise); action the same, or one-hot where it is largest if `hard`."""
    x, y, out = (
        view(like, logits, rows * ld_logits),
        view(like, soft, rows * ld_logits),
        view(like, action, rows * ld_logits),
    )
    one = number(like, 1.0)
    for r in range(rows):
        top = x[r * ld_logits]
        for a in range(1, size):
            top = max(top, x[r * ld_logits + a])
        for a in range(ld_logits):
            y[r * ld_logits + a] = x[r * ld_logits + a] - top if a < size else like
    base = row * ld_logits
    for e in range(rows * ld_logits):
        y[e] = exp(y[e]) / gumbel_exponential(key, base + e)
    for r in range(rows):
        total = like
        for a in range(size):
            total += y[r * ld_logits + a]
        scale = one / total
        best, largest = 0, like
        for a in range(ld_logits):
            y[r * ld_logits + a] = y[r * ld_logits + a] * scale if a < size else like
            if y[r * ld_logits + a] > largest:
                best, largest = a, y[r * ld_logits + a]
        for a in range(ld_logits):
            out[r * ld_logits + a] = (one if a == best else like) if hard else y[r * ld_logits + a]


@operation(fastmath={"contract"})
def choice_entropy(like, rows, entropy: Writes, probability: Writes, logits: Reads, ld_logits, size: Count):  # type: ignore[no-untyped-def]
    """Exact entropy of the choices, and their probabilities (rows, ld_logits)."""
    x, p, h = view(like, logits, rows * ld_logits), view(like, probability, rows * ld_logits), view(like, entropy, rows)
    for r in range(rows):
        top = x[r * ld_logits]
        for a in range(1, size):
            top = max(top, x[r * ld_logits + a])
        for a in range(ld_logits):
            p[r * ld_logits + a] = x[r * ld_logits + a] - top if a < size else like
    for e in range(rows * ld_logits):
        p[e] = exp(p[e])
    for r in range(rows):
        total = like
        for a in range(size):
            total += p[r * ld_logits + a]
        # H = log(total) - sum of p (x - top)
        mean = like
        top = x[r * ld_logits]
        for a in range(1, size):
            top = max(top, x[r * ld_logits + a])
        for a in range(ld_logits):
            p[r * ld_logits + a] = p[r * ld_logits + a] / total if a < size else like
            mean += p[r * ld_logits + a] * (x[r * ld_logits + a] - top) if a < size else like
        h[r] = log(total) - mean


@operation(fastmath={"contract"})
def choices_backward(  # type: ignore[no-untyped-def]
    like, rows, gradient: Writes, action_gradient: Reads, soft: Reads, logits: Reads, ld_logits, size: Count,
    weight: Reads, penalty: Real, loss: Changes,
):  # fmt: skip
    """Gradient of the logits, through soft samples, with the penalty of MADDPG; loss += weighted penalty."""
    g, da = view(like, gradient, rows * ld_logits), view(like, action_gradient, rows * ld_logits)
    y = view(like, soft, rows * ld_logits)
    x = view(like, logits, rows * ld_logits)
    w = view(like, weight, rows)
    total = view(like, loss, 1)
    share = penalty / number(like, size)
    twice = share + share
    added = like
    for r in range(rows):
        t, square = like, like
        for a in range(ld_logits):
            t += y[r * ld_logits + a] * da[r * ld_logits + a]
        for a in range(size):
            square += x[r * ld_logits + a] * x[r * ld_logits + a]
        added += w[r] * square
        for a in range(ld_logits):
            slope = twice * w[r] * x[r * ld_logits + a] if a < size else like
            g[r * ld_logits + a] = y[r * ld_logits + a] * (da[r * ld_logits + a] - t) + slope
    total[0] += share * added


@operation(fastmath={"contract"})
def choice_entropy_backward(  # type: ignore[no-untyped-def]
    like, rows, gradient: Changes, probability: Reads, logits: Reads, ld_logits, size: Count, weight: Reads,
    alpha: Reads,
):  # fmt: skip
    """gradient -= weight alpha dH/dlogits, with dH/dlogit = -p (log p + H)."""
    g, p, x = (
        view(like, gradient, rows * ld_logits),
        view(like, probability, rows * ld_logits),
        view(like, logits, rows * ld_logits),
    )
    w, factor = view(like, weight, rows), view(like, alpha, 1)[0]
    for r in range(rows):
        # log p = x - normaliser, and H = normaliser - sum of p x
        mean = like
        for a in range(size):
            mean += p[r * ld_logits + a] * x[r * ld_logits + a]
        for a in range(size):
            g[r * ld_logits + a] += w[r] * factor * p[r * ld_logits + a] * (x[r * ld_logits + a] - mean)


@operation()
def greedy_choices(like, rows, action: Writes, logits: Reads, ld_logits, size: Count):  # type: ignore[no-untyped-def]
    """One-hot vectors of the largest logits."""
    x, out = view(like, logits, rows * ld_logits), view(like, action, rows * ld_logits)
    one = number(like, 1.0)
    for r in range(rows):
        best = 0
        for a in range(1, size):
            if x[r * ld_logits + a] > x[r * ld_logits + best]:
                best = a
        for a in range(ld_logits):
            out[r * ld_logits + a] = one if a == best else like


# ---- boxes ----------------------------------------------------------------------------------------------------------


@operation(fastmath={"contract"})
def squash(like, rows, action: Writes, ld_action, head: Reads, ld_head, size: Count):  # type: ignore[no-untyped-def]
    """action = tanh of the head's first `size` columns."""
    x, out = view(like, head, rows * ld_head), view(like, action, rows * ld_action)
    for r in range(rows):
        for a in range(ld_action):
            out[r * ld_action + a] = tanh(x[r * ld_head + a]) if a < size else like


@operation(fastmath={"contract"})
def add_noise(like, row, rows, action: Changes, ld_action, size: Count, key: Stream, deviation: Real):  # type: ignore[no-untyped-def]
    """action + deviation * normal noise, within the box from -1 to 1."""
    x = view(like, action, rows * ld_action)
    one = number(like, 1.0)
    for r in range(rows):
        for a in range(size):
            noisy = x[r * ld_action + a] + deviation * normal(key, (row + r) * ld_action + a)
            x[r * ld_action + a] = min(max(noisy, -one), one)


@operation(fastmath={"contract"})
def squash_backward(  # type: ignore[no-untyped-def]
    like, rows, gradient: Writes, ld_gradient, action_gradient: Reads, action: Reads, ld_action, head: Reads,
    size: Count, weight: Reads, penalty: Real, loss: Changes,
):  # fmt: skip
    """Gradient of a deterministic policy's head, with the penalty of MADDPG; loss += weighted penalty."""
    g = view(like, gradient, rows * ld_gradient)
    da = view(like, action_gradient, rows * ld_action)
    y = view(like, action, rows * ld_action)
    x, w, total = view(like, head, rows * ld_gradient), view(like, weight, rows), view(like, loss, 1)
    one = number(like, 1.0)
    share = penalty / number(like, size)
    twice = share + share
    added = like
    for r in range(rows):
        square = like
        for a in range(ld_gradient):
            if a < size:
                z, t = x[r * ld_gradient + a], y[r * ld_action + a]
                square += z * z
                g[r * ld_gradient + a] = da[r * ld_action + a] * (one - t * t) + twice * w[r] * z
            else:
                g[r * ld_gradient + a] = like
        added += w[r] * square
    total[0] += share * added


@operation(fastmath={"contract"})
def gaussian(  # type: ignore[no-untyped-def]
    like, row, rows, action: Writes, ld_action, unit: Writes, entropy: Writes, head: Reads, ld_head, width: Count,
    size: Count, key: Stream, low: Real, high: Real,
):  # fmt: skip
    """Squashed Gaussian samples, the noise that they took, and minus their log-probability.

    The head has `width` means and as many outputs for log-deviations from `low` to `high`; `size` of each are real.
    """
    x, out, h = view(like, head, rows * ld_head), view(like, action, rows * ld_action), view(like, entropy, rows)
    noise = view(like, unit, rows * ld_action)
    half, one, two = number(like, 0.5), number(like, 1), number(like, 2)
    log_two, constant = number(like, 0.6931471805599453), number(like, 0.9189385332046727)  # log 2, log(2 pi) / 2
    for r in range(rows):
        total = like
        for a in range(ld_action):
            if a < size:
                mean, squashed = x[r * ld_head + a], x[r * ld_head + width + a]
                log_std = low + half * (high - low) * (tanh(squashed) + one)
                z = number(like, normal(key, (row + r) * ld_action + a))
                before = mean + exp(log_std) * z
                # log(1 - tanh(x)^2) in a form that does not cancel for large |x|
                log_slope = two * (log_two - before - softplus(-two * before, like))
                total += half * z * z + log_std + constant + log_slope
                out[r * ld_action + a], noise[r * ld_action + a] = tanh(before), z
            else:
                out[r * ld_action + a], noise[r * ld_action + a] = like, like
        h[r] = total


@operation(fastmath={"contract"})
def gaussian_backward(  # type: ignore[no-untyped-def]
    like, rows, gradient: Writes, ld_gradient, action_gradient: Reads, action: Reads, ld_action, unit: Reads,
    head: Reads, width: Count, size: Count, low: Real, high: Real, weight: Reads, alpha: Reads,
):  # fmt: skip
    """Gradient of the head of  loss(action) - weight alpha entropy."""
    g = view(like, gradient, rows * ld_gradient)
    da = view(like, action_gradient, rows * ld_action)
    y = view(like, action, rows * ld_action)
    x, noise, w = view(like, head, rows * ld_gradient), view(like, unit, rows * ld_action), view(like, weight, rows)
    half, one, two, factor = number(like, 0.5), number(like, 1), number(like, 2), view(like, alpha, 1)[0]
    for r in range(rows):
        for a in range(ld_gradient):
            g[r * ld_gradient + a] = like
        for a in range(size):
            t, s = y[r * ld_action + a], tanh(x[r * ld_gradient + width + a])
            log_std = low + half * (high - low) * (s + one)
            # d entropy / d before = -2 tanh(before)
            before = da[r * ld_action + a] * (one - t * t) + w[r] * factor * two * t
            g[r * ld_gradient + a] = before
            by_log_std = before * exp(log_std) * noise[r * ld_action + a] - w[r] * factor
            g[r * ld_gradient + width + a] = by_log_std * half * (high - low) * (one - s * s)


# ---- targets and losses ---------------------------------------------------------------------------------------------


@operation(fastmath={"contract"})
def back_up(  # type: ignore[no-untyped-def]
    like, rows, target: Writes, reward: Reads, ld_reward, bootstrap: Reads, q: Reads, other: Reads,
    entropy: Reads = NOWHERE, ld_entropy=0, alpha: Reads = NOWHERE,
):  # fmt: skip
    """target = reward + bootstrap (the smaller of q and other + alpha entropy); `other` or `entropy` may be absent."""
    y = view(like, target, rows)
    r = view(like, reward, rows)
    b = view(like, bootstrap, rows)
    next_q = view(like, q, rows)
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
    g = view(like, gradient, rows)
    x = view(like, q, rows)
    y = view(like, target, rows)
    w = view(like, weight, rows)
    total = view(like, loss, 1)
    added = like
    for r in range(rows):
        error = x[r] - y[r]
        scaled = w[r] * error
        added += scaled * error
        g[r] = scaled + scaled
    total[0] += added


@operation(fastmath={"contract"})
def policy_gradient(  # type: ignore[no-untyped-def]
    like, rows, gradient: Writes, other_gradient: Writes, q: Reads, other: Reads, weight: Reads, loss: Changes
):
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
    g = view(like, gradient, size)
    one = number(like, 1.0)
    if limit <= like:
        return one
    square = like
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


OPERATIONS = tuple(declared for declared in list(globals().values()) if isinstance(declared, Operation))
"""All of them; an opcode is a place in here."""
