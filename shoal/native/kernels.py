"""The operations that pieces of work are made of: products, samples of policies and their gradients, losses, Adam.

They know nothing of agents or algorithms: `maddpg.py` and `masac.py` say which operation follows which, and `work.py`
runs them. Arrays are flat; `ld` is the distance between two rows. Columns from `size` on are padding, and stay zero.
Shape letters: B batch rows (here those of a chunk), A action, H hidden units.
"""

import math
from typing import Any

from shoal.compiled import njit
from shoal.native.arithmetic import exp, gumbel_exponential, log, normal, number, softplus, tanh
from shoal.native.machine import view
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


@njit(nogil=True, error_model="numpy")
def product(  # type: ignore[no-untyped-def]
    like, item, c, ldc, c_rows, a, row_step, k_step, b, ldb, b_rows, b_first, m, k, columns, bias, mask, start, end
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


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def column_sums(like, item, out, x, ld, width, by, step, rows):  # type: ignore[no-untyped-def]
    """out[u] += sum over rows r of by[r step] x[r, u]; four rows at a time."""
    total, weight = view(like, out, width), view(like, by, rows)
    r = 0
    while r + 4 <= rows:
        x0, x1 = view(like, x + r * ld * item, width), view(like, x + (r + 1) * ld * item, width)
        x2, x3 = view(like, x + (r + 2) * ld * item, width), view(like, x + (r + 3) * ld * item, width)
        w0, w1, w2, w3 = weight[r * step], weight[(r + 1) * step], weight[(r + 2) * step], weight[(r + 3) * step]
        for u in range(width):
            total[u] += (w0 * x0[u] + w1 * x1[u]) + (w2 * x2[u] + w3 * x3[u])
        r += 4
    while r < rows:
        row, w = view(like, x + r * ld * item, width), weight[r * step]
        for u in range(width):
            total[u] += w * row[u]
        r += 1


@njit(nogil=True, error_model="numpy", fastmath=FAST)
def dots(like, item, out, x, ld, width, weight, bias, rows):  # type: ignore[no-untyped-def]
    """out[r] = bias + x[r] · weight: the one output of a critic."""
    q, w, b = view(like, out, rows), view(like, weight, width), view(like, bias, 1)[0]
    for r in range(rows):
        row = view(like, x + r * ld * item, width)
        total = like
        for u in range(width):
            total += row[u] * w[u]
        q[r] = total + b


@njit(nogil=True, error_model="numpy")
def copy_rows(like, item, target, ld_target, source, ld_source, width, by, rows):  # type: ignore[no-untyped-def]
    """target[r, :width] = source[r, :width], times by[r] unless that is nowhere (0)."""
    for r in range(rows):
        to, row = view(like, target + r * ld_target * item, width), view(like, source + r * ld_source * item, width)
        if by:
            factor = view(like, by + r * item, 1)[0]
            for u in range(width):
                to[u] = row[u] * factor
        else:
            for u in range(width):
                to[u] = row[u]


@njit(nogil=True, error_model="numpy")
def subtract_rows(like, item, target, ld_target, x, ld_x, y, ld_y, width, rows):  # type: ignore[no-untyped-def]
    """target[r, :width] = x[r, :width] - y[r, :width]."""
    for r in range(rows):
        to = view(like, target + r * ld_target * item, width)
        one, other = view(like, x + r * ld_x * item, width), view(like, y + r * ld_y * item, width)
        for u in range(width):
            to[u] = one[u] - other[u]


# ---- choices --------------------------------------------------------------------------------------------------------


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def gumbel_softmax(like, action, soft, logits, ld, size, key, first, rows, hard):  # type: ignore[no-untyped-def]
    """soft = softmax(logits + Gumbel noise); action the same, or one-hot where it is largest if `hard`."""
    x, y, out = view(like, logits, rows * ld), view(like, soft, rows * ld), view(like, action, rows * ld)
    one = number(like, 1.0)
    for r in range(rows):
        top = x[r * ld]
        for a in range(1, size):
            top = max(top, x[r * ld + a])
        for a in range(ld):
            y[r * ld + a] = x[r * ld + a] - top if a < size else like
    base = first * ld
    for e in range(rows * ld):
        y[e] = exp(y[e]) / gumbel_exponential(key, base + e)
    for r in range(rows):
        total = like
        for a in range(size):
            total += y[r * ld + a]
        scale = one / total
        best, largest = 0, like
        for a in range(ld):
            y[r * ld + a] = y[r * ld + a] * scale if a < size else like
            if y[r * ld + a] > largest:
                best, largest = a, y[r * ld + a]
        for a in range(ld):
            out[r * ld + a] = (one if a == best else like) if hard else y[r * ld + a]


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def choice_entropy(like, entropy, probability, logits, ld, size, rows):  # type: ignore[no-untyped-def]
    """Exact entropy of the choices, and their probabilities (rows, ld)."""
    x, p, h = view(like, logits, rows * ld), view(like, probability, rows * ld), view(like, entropy, rows)
    for r in range(rows):
        top = x[r * ld]
        for a in range(1, size):
            top = max(top, x[r * ld + a])
        for a in range(ld):
            p[r * ld + a] = x[r * ld + a] - top if a < size else like
    for e in range(rows * ld):
        p[e] = exp(p[e])
    for r in range(rows):
        total = like
        for a in range(size):
            total += p[r * ld + a]
        # H = log(total) - sum of p (x - top)
        mean = like
        top = x[r * ld]
        for a in range(1, size):
            top = max(top, x[r * ld + a])
        for a in range(ld):
            p[r * ld + a] = p[r * ld + a] / total if a < size else like
            mean += p[r * ld + a] * (x[r * ld + a] - top) if a < size else like
        h[r] = log(total) - mean


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def choices_backward(like, gradient, action_gradient, soft, logits, ld, size, weight, penalty, loss, rows):  # type: ignore[no-untyped-def]
    """Gradient of the logits, through soft samples, with the penalty of MADDPG; loss += weighted penalty."""
    g, da = view(like, gradient, rows * ld), view(like, action_gradient, rows * ld)
    y, x, w, total = (
        view(like, soft, rows * ld),
        view(like, logits, rows * ld),
        view(like, weight, rows),
        view(like, loss, 1),
    )
    share = penalty / number(like, size)
    twice = share + share
    added = like
    for r in range(rows):
        t, square = like, like
        for a in range(ld):
            t += y[r * ld + a] * da[r * ld + a]
        for a in range(size):
            square += x[r * ld + a] * x[r * ld + a]
        added += w[r] * square
        for a in range(ld):
            slope = twice * w[r] * x[r * ld + a] if a < size else like
            g[r * ld + a] = y[r * ld + a] * (da[r * ld + a] - t) + slope
    total[0] += share * added


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def add_choice_entropy_gradient(like, gradient, probability, logits, ld, size, weight, alpha, rows):  # type: ignore[no-untyped-def]
    """gradient -= weight alpha dH/dlogits, with dH/dlogit = -p (log p + H)."""
    g, p, x = view(like, gradient, rows * ld), view(like, probability, rows * ld), view(like, logits, rows * ld)
    w, factor = view(like, weight, rows), view(like, alpha, 1)[0]
    for r in range(rows):
        # log p = x - normaliser, and H = normaliser - sum of p x
        mean = like
        for a in range(size):
            mean += p[r * ld + a] * x[r * ld + a]
        for a in range(size):
            g[r * ld + a] += w[r] * factor * p[r * ld + a] * (x[r * ld + a] - mean)


@njit(nogil=True, error_model="numpy")
def greedy_choices(like, action, logits, ld, size, rows):  # type: ignore[no-untyped-def]
    """One-hot vectors of the largest logits."""
    x, out = view(like, logits, rows * ld), view(like, action, rows * ld)
    one = number(like, 1.0)
    for r in range(rows):
        best = 0
        for a in range(1, size):
            if x[r * ld + a] > x[r * ld + best]:
                best = a
        for a in range(ld):
            out[r * ld + a] = one if a == best else like


# ---- boxes ----------------------------------------------------------------------------------------------------------


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def squash(like, action, ld_action, head, ld, size, rows):  # type: ignore[no-untyped-def]
    """action = tanh of the head's first `size` columns."""
    x, out = view(like, head, rows * ld), view(like, action, rows * ld_action)
    for r in range(rows):
        for a in range(ld_action):
            out[r * ld_action + a] = tanh(x[r * ld + a]) if a < size else like


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def disturb(like, action, ld, size, deviation, key, first, rows):  # type: ignore[no-untyped-def]
    """action + deviation * normal noise, within the box from -1 to 1."""
    x = view(like, action, rows * ld)
    one = number(like, 1.0)
    for r in range(rows):
        for a in range(size):
            noisy = x[r * ld + a] + deviation * normal(key, (first + r) * ld + a)
            x[r * ld + a] = min(max(noisy, -one), one)


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def squash_backward(like, gradient, ld, action_gradient, action, ld_action, head, size, weight, penalty, loss, rows):  # type: ignore[no-untyped-def]
    """Gradient of a deterministic policy's head, with the penalty of MADDPG; loss += weighted penalty."""
    g, da, y = (
        view(like, gradient, rows * ld),
        view(like, action_gradient, rows * ld_action),
        view(like, action, rows * ld_action),
    )
    x, w, total = view(like, head, rows * ld), view(like, weight, rows), view(like, loss, 1)
    one = number(like, 1.0)
    share = penalty / number(like, size)
    twice = share + share
    added = like
    for r in range(rows):
        square = like
        for a in range(ld):
            if a < size:
                z, t = x[r * ld + a], y[r * ld_action + a]
                square += z * z
                g[r * ld + a] = da[r * ld_action + a] * (one - t * t) + twice * w[r] * z
            else:
                g[r * ld + a] = like
        added += w[r] * square
    total[0] += share * added


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def gaussian(like, action, ld_action, unit, entropy, head, ld, width, size, low, high, key, first, rows):  # type: ignore[no-untyped-def]
    """Squashed Gaussian samples, the noise that they took, and minus their log-probability.

    The head has `width` means and as many outputs for log-deviations from `low` to `high`; `size` of each are real.
    """
    x, out, h = view(like, head, rows * ld), view(like, action, rows * ld_action), view(like, entropy, rows)
    noise = view(like, unit, rows * ld_action)
    half, one, two = number(like, 0.5), number(like, 1), number(like, 2)
    log_two, constant = number(like, 0.6931471805599453), number(like, 0.9189385332046727)  # log 2, log(2 pi) / 2
    for r in range(rows):
        total = like
        for a in range(ld_action):
            if a < size:
                mean, squashed = x[r * ld + a], x[r * ld + width + a]
                log_std = low + half * (high - low) * (tanh(squashed) + one)
                z = number(like, normal(key, (first + r) * ld_action + a))
                before = mean + exp(log_std) * z
                # log(1 - tanh(x)^2) in a form that does not cancel for large |x|
                log_slope = two * (log_two - before - softplus(-two * before, like))
                total += half * z * z + log_std + constant + log_slope
                out[r * ld_action + a], noise[r * ld_action + a] = tanh(before), z
            else:
                out[r * ld_action + a], noise[r * ld_action + a] = like, like
        h[r] = total


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def gaussian_backward(  # type: ignore[no-untyped-def]
    like, gradient, ld, action_gradient, action, unit, ld_action, head, width, size, low, high, weight, alpha, rows
):  # fmt: skip
    """Gradient of the head of  loss(action) - weight alpha entropy."""
    g, da, y = (
        view(like, gradient, rows * ld),
        view(like, action_gradient, rows * ld_action),
        view(like, action, rows * ld_action),
    )
    x, noise, w = view(like, head, rows * ld), view(like, unit, rows * ld_action), view(like, weight, rows)
    half, one, two, factor = number(like, 0.5), number(like, 1), number(like, 2), view(like, alpha, 1)[0]
    for r in range(rows):
        for a in range(ld):
            g[r * ld + a] = like
        for a in range(size):
            t, s = y[r * ld_action + a], tanh(x[r * ld + width + a])
            log_std = low + half * (high - low) * (s + one)
            # d entropy / d before = -2 tanh(before)
            before = da[r * ld_action + a] * (one - t * t) + w[r] * factor * two * t
            g[r * ld + a] = before
            by_log_std = before * exp(log_std) * noise[r * ld_action + a] - w[r] * factor
            g[r * ld + width + a] = by_log_std * half * (high - low) * (one - s * s)


# ---- targets and losses ---------------------------------------------------------------------------------------------


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def back_up(like, target, reward, step, bootstrap, q, other, entropy, entropy_step, alpha, rows):  # type: ignore[no-untyped-def]
    """target = reward + bootstrap (the smaller of q and other + alpha entropy); no `other` or `entropy` if it is 0."""
    y, r, b, next_q = (
        view(like, target, rows),
        view(like, reward, rows),
        view(like, bootstrap, rows),
        view(like, q, rows),
    )
    for k in range(rows):
        value = next_q[k]
        if other:
            value = min(value, view(like, other, rows)[k])
        if entropy:
            value += view(like, alpha, 1)[0] * view(like, entropy, rows)[k * entropy_step]
        y[k] = r[k * step] + b[k] * value


@njit(nogil=True, error_model="numpy", fastmath=FAST)
def squared_error(like, gradient, q, target, weight, loss, rows):  # type: ignore[no-untyped-def]
    """gradient = 2 weight (q - target); loss += weight (q - target)^2."""
    g, x, y, w, total = (
        view(like, gradient, rows),
        view(like, q, rows),
        view(like, target, rows),
        view(like, weight, rows),
        view(like, loss, 1),
    )
    added = like
    for r in range(rows):
        error = x[r] - y[r]
        scaled = w[r] * error
        added += scaled * error
        g[r] = scaled + scaled
    total[0] += added


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def climb(like, gradient, other_gradient, q, other, weight, loss, rows):  # type: ignore[no-untyped-def]
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


@njit(nogil=True, error_model="numpy", fastmath=FAST)
def weighted_sum(like, total, x, weight, factor, minus, rows):  # type: ignore[no-untyped-def]
    """total += factor * sum of weight (x - minus); factor is at an address, or 0: one."""
    y, w, out = view(like, x, rows), view(like, weight, rows), view(like, total, 1)
    added = like
    for r in range(rows):
        added += w[r] * (y[r] - minus)
    out[0] += added * view(like, factor, 1)[0] if factor else added


# ---- steps ----------------------------------------------------------------------------------------------------------


@njit(nogil=True, error_model="numpy")
def add_to(like, total, x, size):  # type: ignore[no-untyped-def]
    """total += x."""
    t, y = view(like, total, size), view(like, x, size)
    for k in range(size):
        t[k] += y[k]


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


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def adam(like, x, gradient, mean, square, size, scale, rate, step):  # type: ignore[no-untyped-def]
    """One step of Adam on `size` numbers, with the gradient times `scale`; `step` counts from 1."""
    w, g, m, v = view(like, x, size), view(like, gradient, size), view(like, mean, size), view(like, square, size)
    root = number(like, 1.0 / (1.0 - 0.999**step) ** 0.5)
    pace, eps = number(like, rate / (1.0 - 0.9**step)), number(like, 1e-8)
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


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def move(like, target, online, size, tau):  # type: ignore[no-untyped-def]
    """target <- (1 - tau) target + tau online."""
    t, x = view(like, target, size), view(like, online, size)
    for k in range(size):
        t[k] += tau * (x[k] - t[k])


@njit(nogil=True, error_model="numpy")
def transpose(like, item, out, x, x_rows, first, rows, columns):  # type: ignore[no-untyped-def]
    """out = panels of the transposed (columns, rows) of the rows from `first` on of x in panels, which has `x_rows`."""
    wide = (rows + NARROW - 1) // NARROW * NARROW
    wide_x = (columns + NARROW - 1) // NARROW * NARROW
    to, source = view(like, out, columns * wide), view(like, x, x_rows * wide_x)
    for u in range(0, wide_x, PANEL):
        width = PANEL if u + PANEL <= wide_x else NARROW
        for r in range(rows):
            at = u * x_rows + (first + r) * width
            p = r // PANEL * PANEL
            step = PANEL if p + PANEL <= wide else NARROW
            place = p * columns + u * step + r - p
            for k in range(min(width, columns - u)):
                to[place + k * step] = source[at + k]
