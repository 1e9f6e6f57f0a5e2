"""The operations of policies: samples of choices and of boxes, their entropies, and the gradients of both.

Columns from `size` on are padding, and stay zero.
Shape letters: A action.
"""

from shoal.native.arithmetic import exp, log, normal, number, softplus, tanh, uniform
from shoal.native.machine import view
from shoal.native.operations import Changes, Count, Reads, Real, Stream, Writes, operation

LEAST = -5e8  # logits of legal choices are above it, those of others at MASKED

# ---- choices --------------------------------------------------------------------------------------------------------


@operation()
def forbid(like, rows, numbers: Changes, ld_numbers, mask: Reads, ld_mask, size: Count, value: Real):  # type: ignore[no-untyped-def]
    """numbers = value where the mask is not positive, of the first `size` columns."""
    x, m = view(like, numbers, rows * ld_numbers), view(like, mask, rows * ld_mask)
    for r in range(rows):
        for a in range(size):
            if m[r * ld_mask + a] <= like:
                x[r * ld_numbers + a] = value


@operation(fastmath={"contract"})
def gumbel_softmax(  # type: ignore[no-untyped-def]
    like, row, rows, action: Writes, soft: Writes, logits: Reads, ld_logits, size: Count, key: Stream, hard: Count
):
    """soft = softmax(logits + Gumbel noise), 0 for masked choices; action = soft, or if `hard` its one-hot argmax."""
    numbers, one = rows * ld_logits, number(like, 1.0)
    x, y, out = view(like, logits, numbers), view(like, soft, numbers), view(like, action, numbers)
    for r in range(rows):
        top = x[r * ld_logits]
        for a in range(1, size):
            top = max(top, x[r * ld_logits + a])
        for a in range(ld_logits):
            y[r * ld_logits + a] = x[r * ld_logits + a] - top if a < size else like
    for e in range(numbers):
        y[e] = exp(y[e]) / -log(uniform(key, row * ld_logits + e))  # Gumbel noise is -log(-log(u))
    for r in range(rows):
        total = like
        for a in range(size):
            total += y[r * ld_logits + a]
        scale = one / total
        best, largest = 0, like
        for a in range(ld_logits):
            legal = a < size and x[r * ld_logits + a] > LEAST
            y[r * ld_logits + a] = y[r * ld_logits + a] * scale if legal else like
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
    numbers = rows * ld_logits
    g, da = view(like, gradient, numbers), view(like, action_gradient, numbers)
    y, x = view(like, soft, numbers), view(like, logits, numbers)
    w, total = view(like, weight, rows), view(like, loss, 1)
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
    numbers = rows * ld_logits
    g, p, x = view(like, gradient, numbers), view(like, probability, numbers), view(like, logits, numbers)
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
    for r in range(rows):
        best = 0
        for a in range(1, size):
            if x[r * ld_logits + a] > x[r * ld_logits + best]:
                best = a
        for a in range(ld_logits):
            out[r * ld_logits + a] = number(like, 1.0) if a == best else like


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
    g, da = view(like, gradient, rows * ld_gradient), view(like, action_gradient, rows * ld_action)
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
    g, da = view(like, gradient, rows * ld_gradient), view(like, action_gradient, rows * ld_action)
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
