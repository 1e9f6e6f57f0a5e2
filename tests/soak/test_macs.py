"""Products through random MAC units against an oracle of their own: every bit, and what is counted on the way."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch

from shoal.errors import UserError
from shoal.numerics import MacStats, MacUnit, matmul, parse_mac
from tests.soak.harness import check_sentence
from tests.soak.mac_oracle import Counts, Fixed, Float, Format, Multiplier, Refused, Unit, cast, random_bits

FULL = 100_000
"""Dot products."""
OUTPUTS = 50
"""Dot products of a case, about."""
ROUNDINGS = ("nearest-even", "nearest-away", "toward-zero", "up", "down")


def float_format(rng: Random, most_e: int, most_m: int) -> Float:
    """A plain format, mostly a narrow one."""
    e = rng.randint(2, most_e) if rng.random() < 0.95 else 1
    m = rng.randint(1, 4) if rng.random() < 0.7 else rng.randint(0, most_m)
    usual = 2 ** (e - 1) - 1
    return Float(e, m, usual if rng.random() < 0.8 else usual + rng.randint(-6, 6))


def accumulator(rng: Random) -> Format:
    if rng.random() < 0.4:
        return Fixed(rng.randint(1, 14), rng.randint(1, 20), rng.random() < 0.1)
    plain = float_format(rng, 8, 23)
    if rng.random() < 0.7:
        return plain
    low = rng.choice(("gradual", "normal", "zero"))
    inf, nan = rng.choice(((True, True), (True, False), (False, True), (False, False)))
    signed = not nan or rng.random() < 0.8
    return Float(plain.e, plain.m, plain.bias, low, inf, nan, signed)


def multiplier(rng: Random) -> tuple[Multiplier, dict[str, object]]:
    """A multiplier and the fields that its name needs."""
    both = 2 if rng.random() < 0.3 else 1
    fields: dict[str, object] = {}
    if rng.random() < 0.25:
        a, b = fixed_operands(rng, both)
        if rng.random() < 0.4:
            fields["rounded"] = False
            return Multiplier(a, b, 0, None), fields
        how = rng.choice(ROUNDINGS)
        fields["product_rounding"] = how
        product = Fixed(max(a.i + a.extra, b.i + b.extra), max(a.f, b.f))
        if rng.random() < 0.3:
            product = Fixed(rng.randint(1, 12), rng.randint(1, 14))
            fields["output"] = name_of(product)
        return Multiplier(a, b, 0, product, how), fields
    cfg = rng.randint(1, 6)
    a = float_format(rng, 6, 10)
    b = float_format(rng, 6, 10) if both == 2 else a
    zero = rng.choice(("infinity", "zero"))
    fields["zero_times_infinity"] = zero
    if cfg <= 2:
        how, flush = rng.choice(ROUNDINGS), rng.choice(("after-rounding", "before-rounding", "subnormal-grid"))
        fields |= {"product_rounding": how, "flush": flush}
        e, m = max(a.e, b.e), max(a.m, b.m)
        product = a if a == b else Float(e, m, 2 ** (e - 1) - 1)
        if rng.random() < 0.3:
            product = float_format(rng, 7, 12)
            fields["output"] = name_of(product)
        return Multiplier(a, b, cfg, product, how, flush, zero), fields
    usual = all(format.bias == 2 ** (format.e - 1) - 1 for format in (a, b))
    e, m = max(a.e, b.e) + 1, a.m + b.m + 1
    bias = a.bias + b.bias
    if usual and rng.random() < 0.3:
        fields["product_bias"], bias = "ieee", 2 ** (e - 1) - 1
    low = {3: "gradual", 4: "gradual", 5: "normal", 6: "zero"}[cfg]
    a, b = (Float(format.e, format.m, format.bias, low, nan=cfg == 3) for format in (a, b))
    product = Float(e, m, bias, "normal" if cfg == 5 else "zero", nan=cfg == 3)
    return Multiplier(a, b, cfg, product, zero_times_infinity=zero), fields


def fixed_operands(rng: Random, both: int) -> tuple[Fixed, Fixed]:
    a, b = (Fixed(rng.randint(1, 10), rng.randint(1, 12), rng.random() < 0.1) for _ in range(2))
    return a, b if both == 2 else a


def unit(rng: Random) -> tuple[Unit, str]:
    """A unit of the oracle and its name for Shoal."""
    made, fields = multiplier(rng)
    sums = accumulator(rng)
    fixed = isinstance(sums, Fixed)
    order = rng.choice(("sequential", "sequential", "chunked", "pairwise", "exact", "exact" if fixed else "kahan"))
    chunk = rng.randint(1, 9) if order == "chunked" else 0
    rounding = rng.choice((*ROUNDINGS, "nearest-even", "stochastic", "stochastic"))
    overflows = ["saturate", "saturate"] + ["infinity"] * sums.inf + ["nan"] * sums.nan + ["wrap"] * fixed
    nan = rng.choice(["zero", "zero", "error"] + ["infinity"] * sums.inf)
    fused = not fixed and rng.random() < 0.8
    overflow, bits, variant = rng.choice(overflows), rng.randint(1, 20), rng.choice("ABC")
    fields |= {"order": f"chunked({chunk})" if chunk else order, "rounding": rounding, "overflow": overflow, "nan": nan}
    if not fixed:
        fields["fused"] = fused
    if rounding == "stochastic":
        fields |= {"random_bits": bits, "variant": variant}
    own = Unit(made, sums, order, chunk, rounding, overflow, fused, nan, bits, variant)
    names = {operand_name(format, made.cfg): None for format in (made.a, made.b)}
    return own, ", ".join([f"{'*'.join(names)}+{name_of(sums)}", *(f"{key}={value}" for key, value in fields.items())])


def operand_name(format: Format, cfg: int) -> str:
    """An operand's format; what its ends mean is said by the configuration."""
    return name_of(format) if isinstance(format, Fixed) else f"E{format.e}M{format.m}:{cfg}(bias={format.bias})"


def name_of(format: Format) -> str:
    """A format in words, all of them."""
    if isinstance(format, Fixed):
        return f"Q{format.i}.{format.f}(sign_extra={format.extra})"
    return (
        f"E{format.e}M{format.m}(bias={format.bias}, subnormals={format.low}, infinities={format.inf}, "
        f"nans={format.nan}, signed_zero={format.signed_zero})"
    )


def operand(rng: Random, shape: tuple[int, ...], format: Format) -> np.ndarray:
    """Numbers of many kinds: over many binades, small whole ones, at the ends of the format, a few special ones."""
    numbers = np.random.default_rng(rng.getrandbits(64))
    kind, dtype = rng.random(), rng.choice((np.float32, np.float64))
    largest = float(format.most[0])
    if kind < 0.45:
        values = numbers.standard_normal(shape) * np.exp2(numbers.integers(-9, 9, shape))
    elif kind < 0.6:
        values = numbers.integers(-8, 9, shape).astype(float)
    elif kind < 0.75:
        values = numbers.standard_normal(shape) * float(format.neighbours(format.most[0])[1] - format.most[0])
    elif kind < 0.9:
        values = numbers.choice([largest, -largest, 1.0, -1.0, 0.5], shape) * numbers.uniform(0.4, 1.1, shape)
    else:
        least = float(format.least) if isinstance(format, Float) else 2.0**-format.f
        values = numbers.standard_normal(shape) * least * np.exp2(numbers.integers(0, 6, shape))
    with np.errstate(over="ignore"):
        values = values.astype(dtype)
    if rng.random() < 0.25:
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, largest, -largest]
        chosen = numbers.choice(special, shape, p=(0.3, 0.2, 0.1, 0.1, 0.05, 0.15, 0.1))
        values = np.where(numbers.random(shape) < 0.1, chosen.astype(dtype), values)
    return values


def expected(a: np.ndarray, b: np.ndarray, own: Unit, seed: int, call: int) -> np.ndarray | None:
    """The oracle's product of (batch, M, K) and (batch, K, N); None if it is refused."""
    own.counts = Counts()
    result = np.zeros((a.shape[0], a.shape[1], b.shape[2]))
    try:
        x = np.vectorize(lambda value: cast(float(value), own.multiplier.a, own.nan), otypes=[float])(a)
        y = np.vectorize(lambda value: cast(float(value), own.multiplier.b, own.nan), otypes=[float])(b)
        for output, at in enumerate(np.ndindex(*result.shape)):
            draw = random_bits(seed, call, output, own.bits)
            before = replace(own.counts)
            result[at] = own.dot(x[at[0], at[1]].tolist(), y[at[0], :, at[2]].tolist(), draw)
            if not (np.isfinite(x[at[0], at[1]]).all() and np.isfinite(y[at[0], :, at[2]]).all()):
                own.counts = before  # a sum with an infinite or NaN operand counts no events
    except Refused:
        return None
    return result


def shoal_unit(rng: Random) -> tuple[Unit, MacUnit, int]:
    """A unit that Shoal takes, and how many it refused before."""
    for refused in range(1000):
        own, name = unit(rng)
        try:
            return own, parse_mac(name), refused
        except UserError as error:
            check_sentence(str(error))
    raise AssertionError("a thousand units were refused")


@pytest.mark.slow
def test_random_products(soak):
    for case in soak.cases(FULL // OUTPUTS):
        with case:
            rng = case.rng
            own, mac, _ = shoal_unit(rng)
            batch, rows = rng.choice((1, 1, 1, 2)), rng.randint(1, 8)
            columns = max(1, OUTPUTS // (batch * rows)) + rng.randint(0, 3)
            depth = rng.choice((0, 1, 2, 3, 5, 8, 13, 16, 21, 40))
            a = operand(rng, (batch, rows, depth), own.multiplier.a)
            b = operand(rng, (batch, depth, columns), own.multiplier.b)
            seed, call, threads = rng.randrange(2**40), rng.randrange(2**20), rng.choice((1, 1, 2))
            case.story = f"{mac}: {a.shape} × {b.shape}, {a.dtype} × {b.dtype}, seed={seed}, call={call}"
            wanted = expected(a, b, own, seed, call)
            given = (torch.from_numpy(a), torch.from_numpy(b)) if rng.random() < 0.2 else (a, b)
            counted = rng.random() < 0.5  # other loops where nothing is to be counted
            try:
                result = matmul(*given, mac, stats=counted, seed=seed, call=call, threads=threads)
            except UserError as error:
                check_sentence(str(error))
                assert wanted is None and "NaN" in str(error), error
                case.count("cases refused (NaN)")
                continue
            assert wanted is not None, "NaN that has no code was not refused"
            result, stats = result if counted else (result, None)
            got = np.asarray(result, np.float64)
            same = (got == wanted) & (np.signbit(got) == np.signbit(wanted)) | np.isnan(got) & np.isnan(wanted)
            wrong = [(tuple(map(int, at)), got[tuple(at)], wanted[tuple(at)]) for at in np.argwhere(~same)]
            assert not wrong, f"{len(wrong)} of {got.size} differ (at, got, expected): {wrong[:3]}"
            counts = own.counts
            happened = got.size * depth, counts.saturated, counts.overflowed, counts.underflowed
            assert stats is None or stats == MacStats(*happened), f"{stats}, but {counts}"
            soak.outcomes["dot products"] += got.size
