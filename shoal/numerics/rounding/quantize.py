"""`quantize`: rounding of numpy arrays and torch tensors to a number format.

`exact.round_exact` is the definition. On the CPU, numbers go through compiled loops (`kernels`) as float32, or as
float64 if they are, or if float32 cannot represent the format. Other devices use torch operations (`tensors`).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.errors import UserError, check_choice, check_range, whole_number
from shoal.numerics.formats.notation import parse
from shoal.numerics.formats.types import BlockFormat, FixedFormat, FloatFormat, Format, Scalar
from shoal.numerics.rounding import kernels, tensors
from shoal.numerics.rounding.blocks import quantize_blocks, round_bands, shared_range, tiles
from shoal.numerics.rounding.plan import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    VARIANTS,
    check_rules,
    fits,
    rounding_plan,
    rounds_in,
)
from shoal.numerics.rounding.randomness import SPAN, keys
from shoal.system.memory import check_fits
from shoal.system.threads import share_out

Array = TypeVar("Array", bound=Any)

CARRIERS = {torch.float16: FLOAT16, torch.bfloat16: BFLOAT16, torch.float32: FLOAT32, torch.float64: FLOAT64}
STARTS = ("nearest-even", "down")
ALONE = 2**15
"""Up to this many elements one thread is faster than two."""
PAGED = 2**22  # from this many bytes on, large pages are worth asking for
LARGE = 2**28  # from this many bytes on, free memory is checked first


class Rules(NamedTuple):
    """The arguments of `quantize` with the defaults filled in."""

    rounding: str
    overflow: str
    underflow: str
    nan: str
    seed: int
    call: int
    offset: int
    random_bits: int
    variant: int
    threads: int


def quantize(
    tensor: Array,
    format: Format | str,
    rounding: str = "nearest-even",
    overflow: str | None = None,
    *,
    underflow: str = "round",
    nan: str = "error",
    seed: int | None = None,
    call: int = 0,
    offset: int = 0,
    random_bits: int | None = None,
    variant: str = "A",
    previous: Any = None,
    start: str = "nearest-even",
    out: Any = None,
    threads: int | None = None,
) -> Array:
    """Round a tensor to a number format; docs/numerics.md has a table of all special cases.

    The result has the tensor's type if that can represent every value of the format, else float32, else float64. No
    gradient flows through it.

    Args:
        tensor: floating-point numbers, numpy or torch, of any shape and layout; or one float.
        format: a format or its name.
        rounding: `nearest-even`, `nearest-away`, `toward-zero`, `up`, `down`, `stochastic` or `hysteresis`.
        overflow: what to do with results beyond the largest value: `infinity` (the default where the format has it),
            `saturate` (the default elsewhere), `nan`, or `wrap` (fixed point).
        underflow: below the smallest value of a format without subnormals, `round` to the nearer of it and zero, or
            `truncate` like a converter that only rounds mantissas.
        nan: what to do with NaN if the format has none: `error`, `zero` or `infinity`.
        seed: stochastic: determines the random bits, together with `call` and each element's index.
        call: stochastic: number of this call, so that calls with one seed draw different bits.
        offset: stochastic: the index of the first element, for a tensor that is rounded piece by piece.
        random_bits: stochastic: number of random bits, 1 to 30 (60 for float64); by default the maximum.
        variant: stochastic: `A`, `B` or `C`.
        previous: hysteresis: the previous result; without it, `start` decides how to round.
        start: hysteresis: `nearest-even` or `down`.
        out: array or tensor for the result; may be the input itself. Nothing is written on an error.
        threads: number of threads, by default torch's; does not change the result.

    """
    chosen = parse(format) if isinstance(format, str) else format
    if not isinstance(chosen, FloatFormat | FixedFormat | BlockFormat):
        raise UserError(f"quantize needs a number format or its name, not {format!r}.")
    x, give_back = _as_torch(tensor)
    element = chosen.element if isinstance(chosen, BlockFormat) else chosen
    in_force = check_rules(element, rounding, overflow, underflow, nan)
    dtype = _result_type(chosen, x.dtype)
    y = _place(out, tensor, x, dtype)
    needed = memory_needed(x, element, dtype, y)
    check_memory(f"Rounding {x.numel():,} numbers", needed, "pieces of it, or out=, need less")

    if rounding == "hysteresis":
        check_choice("start", start, STARTS)
        rest: dict[str, Any] = {"overflow": overflow, "underflow": underflow, "nan": nan, "threads": threads}
        if previous is None:
            result = quantize(x, chosen, start, **rest)
        else:
            last = _as_torch(previous)[0]
            if last.shape != x.shape:
                raise UserError(f"previous has shape {tuple(last.shape)}, but the tensor has shape {tuple(x.shape)}.")
            down, up = (quantize(x, chosen, way, **rest) for way in ("down", "up"))
            result = torch.where(x > last.to(x.device), down, up)
        return cast(Array, give_back(result if y is None else y.copy_(result)))

    if seed is None and rounding == "stochastic":
        raise UserError("stochastic rounding needs a seed for its random bits.")
    check_choice("variant", variant, VARIANTS)
    rules = Rules(
        rounding=rounding,
        overflow=in_force if overflow or not isinstance(chosen, BlockFormat) else "saturate",
        underflow=underflow,
        nan=nan,
        seed=0 if seed is None else whole_number("seed", seed),
        call=whole_number("call", call),
        offset=whole_number("offset", offset, 0),
        random_bits=_random_bits(random_bits, x.dtype, element),
        variant=VARIANTS.index(variant),
        threads=torch.get_num_threads() if threads is None else whole_number("threads", threads, 1),
    )
    if y is not None:
        refuses = nan == "error" and not (isinstance(element, FloatFormat) and element.nans)
        if refuses and x.numel() and bool(x.amax().isnan()):
            _refuse_nans(int(x.isnan().sum()), element, nan)  # before anything is overwritten
        if _overlap(x, y) and (x.data_ptr() != y.data_ptr() or x.dtype != y.dtype or not x.is_contiguous()):
            x = x.clone()
    if isinstance(chosen, BlockFormat):
        keep_infinities = overflow is None and isinstance(element, FloatFormat) and element.infinities
        result = _round_blocks(x, chosen, rules, dtype, keep_infinities)
    else:
        result = _round(x, element, rules, dtype, y)
    return cast(Array, give_back(result if y is None or y is result else y.copy_(result)))


def _round(
    x: Tensor, format: Scalar, rules: Rules, dtype: torch.dtype | None = None, out: Tensor | None = None
) -> Tensor:
    """x rounded, as `dtype` (by default its own)."""
    dtype = x.dtype if dtype is None else dtype
    y = _empty(x, dtype) if out is None else out
    if x.device.type == "cpu":
        kind = compiled_type(x, format)
        inside = y if dtype == kind else _empty(x, kind)
        nans = _round_compiled(x.to(kind), format, rules, inside)
        if inside is not y:
            y.copy_(inside)
    else:
        nans = _round_by_torch(x.reshape(-1), format, rules, y.view(-1))
    _refuse_nans(nans, format, rules.nan)
    if rules.overflow == "wrap" and isinstance(format, FixedFormat):
        y.copy_(_wrap(y, format))
    return y


def _empty(x: Tensor, dtype: torch.dtype) -> Tensor:
    """New memory for as many numbers, on the device of x.

    Large arrays come from numpy, which asks the system for large pages: mapping small ones takes longer than rounding.
    """
    size = x.numel() * dtype.itemsize
    if x.device.type != "cpu" or size < PAGED:
        return torch.empty(x.shape, dtype=dtype, device=x.device)
    return torch.from_numpy(np.empty(size, np.uint8)).view(dtype).view(x.shape)


def compiled_type(x: Tensor, format: Scalar) -> torch.dtype:
    """The type in which the compiled loops round a tensor to a format."""
    return torch.float32 if x.dtype != torch.float64 and rounds_in(format, FLOAT32) else torch.float64


def _as_integers(x: Tensor) -> NDArray[Any]:
    """The bit patterns of contiguous numbers, flat."""
    return x.numpy().reshape(-1).view(np.int32 if x.dtype == torch.float32 else np.int64)


def _round_compiled(x: Tensor, format: Scalar, rules: Rules, y: Tensor) -> int:
    """y = x rounded by the compiled loops; returns the number of NaN."""
    plan = rounding_plan(format, CARRIERS[x.dtype], rules.rounding, rules.overflow, rules.underflow, rules.nan)
    x = x.contiguous()
    if rules.rounding == "stochastic" and _overlap(x, y):
        x = x.clone()
    source, target = _as_integers(x), _as_integers(y)

    def work(first: int, last: int) -> int:
        if rules.rounding != "stochastic":
            return int(kernels.round_nearest_or_directed(source[first:last], target[first:last], plan))
        nans, chance = 0, (rules.random_bits, rules.variant)
        for begin, end, index in _spans(first, last, rules.offset):
            part, result, drawn = source[begin:end], target[begin:end], keys(rules.seed, rules.call, index // SPAN)
            nans += kernels.round_stochastically(part, result, plan, index % SPAN, drawn, *chance)
        return nans

    return sum(share_out(work, source.size, rules.threads if source.size > ALONE else 1))


def _round_blocks(x: Tensor, format: BlockFormat, rules: Rules, dtype: torch.dtype, keep_infinities: bool) -> Tensor:
    """x rounded block by block, as `dtype`."""
    shape, tile = tiles(format, x.shape)
    element, carrier = format.element, CARRIERS[dtype]
    if x.numel() == 0:
        return x.to(dtype)
    one_span = rules.offset // SPAN == (rules.offset + x.numel() - 1) // SPAN
    narrow = x.dtype != torch.float64 and dtype != torch.float64 and rounds_in(element, FLOAT32)
    if x.device.type == "cpu" and narrow and one_span and rules.overflow != "wrap":
        y = _empty(x, torch.float32)
        source, target = (_as_integers(t).reshape(shape) for t in (x.float().contiguous(), y))
        plan = rounding_plan(element, FLOAT32, rules.rounding, rules.overflow, rules.underflow, rules.nan)
        if keep_infinities:
            plan = plan._replace(infinity_positive=FLOAT32.infinity, infinity_negative=FLOAT32.infinity)
        exponents = (element.highest_exponent, *shared_range(format, carrier))
        bits = rules.random_bits if rules.rounding == "stochastic" else 0
        chance = (rules.offset % SPAN, keys(rules.seed, rules.call, rules.offset // SPAN), bits, rules.variant)
        bands = shape[0] * -(-shape[1] // tile[0])
        threads = min(rules.threads, bands) if source.size > ALONE else 1
        nans = share_out(round_bands, bands, threads, source, target, plan, tile, exponents, *chance)
        if min(nans) >= 0:
            _refuse_nans(sum(nans), element, rules.nan)
            return y.to(dtype)
    return quantize_blocks(x, format, dtype, carrier, keep_infinities, lambda scaled: _round(scaled, element, rules))


def _round_by_torch(x: Tensor, format: Scalar, rules: Rules, y: Tensor) -> int:
    """y = x rounded by torch operations, in pieces; both flat. Returns the number of NaN."""
    plan = rounding_plan(format, FLOAT64, rules.rounding, rules.overflow, rules.underflow, rules.nan)
    nans, chance = 0, (rules.random_bits, rules.variant)
    for first in range(0, x.numel(), tensors.PIECE):
        piece, result = (t[first : first + tensors.PIECE] for t in (x, y))
        piece = piece.double()
        nans += int(piece.isnan().sum())
        if rules.rounding != "stochastic":
            result.copy_(tensors.round_nearest_or_directed(piece, plan))
            continue
        for begin, end, index in _spans(0, piece.numel(), rules.offset + first):
            drawn = keys(rules.seed, rules.call, index // SPAN)
            result[begin:end] = tensors.round_stochastically(piece[begin:end], plan, index, drawn, *chance)
    return nans


def _spans(first: int, last: int, offset: int) -> Iterator[tuple[int, int, int]]:
    """(begin, end, index of begin) of the parts of first:last whose indices share their keys."""
    while first < last:
        end = min(last, first + SPAN - (offset + first) % SPAN)
        yield first, end, offset + first
        first = end


def _wrap(y: Tensor, format: FixedFormat) -> Tensor:
    """Two's complement: drop multiples of the period. All steps are exact; the last addition turns -0 into 0."""
    period = -2 * format.min
    y = torch.fmod(y, period)
    y = torch.where(y > format.max, y - period, y)
    return torch.where(y < format.min, y + period, y) + 0.0


def _as_torch(tensor: Any) -> tuple[Tensor, Any]:
    """A torch tensor of the same numbers, and a function that converts a result to the caller's type."""
    if isinstance(tensor, Tensor):
        if not is_dense(tensor) or tensor.device.type == "meta":
            kind = f"{tensor.dtype}, {tensor.layout}, on {tensor.device}"
            raise UserError(f"quantize rounds dense floating-point numbers, not these ({kind}).")
        return tensor.detach().resolve_neg(), lambda result: result
    if not isinstance(tensor, np.ndarray | np.floating | float):
        raise UserError(f"quantize rounds numpy arrays and torch tensors, not a {type(tensor).__name__}.")
    array = np.asanyarray(tensor)
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise UserError(f"quantize rounds floating-point numbers up to float64, not {array.dtype}; convert them first.")
    x = from_numpy(array)
    return x, (lambda result: result.numpy()) if isinstance(tensor, np.ndarray) else (lambda result: result.numpy()[()])


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor is a dense block of floating-point numbers."""
    return tensor.dtype in CARRIERS and tensor.layout == torch.strided and not tensor.is_nested


def from_numpy(array: Any) -> Tensor:
    """The same floating-point numbers as a tensor; copied only if torch cannot view them in place."""
    if isinstance(array, np.ma.MaskedArray):
        raise UserError("The mask of a masked array would be lost; fill it first with .filled(…).")
    native = array.dtype.newbyteorder("=")
    if not (array.flags.c_contiguous and array.flags.writeable and array.dtype == native):
        check_memory(f"A copy of {array.size:,} numbers", array.nbytes, "a contiguous array needs none")
        array = np.array(array, native, order="C", copy=True, subok=False)
    return torch.from_numpy(np.asarray(array))


def check_memory(what: str, needed: int, less: str) -> None:
    """Refuse what would not fit into memory; small sizes are not checked."""
    if needed >= LARGE:
        check_fits(what, needed, lambda _free: less)


def memory_needed(x: Tensor, element: Scalar, dtype: torch.dtype, y: Tensor | None) -> int:
    """Bytes that rounding takes on the CPU, in addition to the tensor and `out`."""
    if x.device.type != "cpu":
        return 0
    carrier = compiled_type(x, element)
    copied = 0 if x.is_contiguous() and x.dtype == carrier else carrier.itemsize
    result = 0 if y is not None else dtype.itemsize
    return x.numel() * (copied + result + (0 if dtype == carrier else carrier.itemsize))


def _place(out: Any, tensor: Any, x: Tensor, dtype: torch.dtype) -> Tensor | None:
    """`out` as a tensor that the result can be written to."""
    if out is None:
        return None
    if isinstance(out, Tensor) != isinstance(tensor, Tensor) or not isinstance(out, Tensor | np.ndarray):
        raise UserError(f"out is a {type(out).__name__}, but the tensor is a {type(tensor).__name__}.")
    if isinstance(out, Tensor):
        y = out.detach() if is_dense(out) and not out.is_neg() else None
    else:
        fit = out.flags.c_contiguous and out.flags.writeable and out.dtype.kind == "f" and out.dtype.isnative
        y = torch.from_numpy(out) if fit and out.dtype.itemsize <= 8 else None
    if y is None or not y.is_contiguous() or y.shape != x.shape or y.dtype != dtype or y.device != x.device:
        raise UserError(
            f"out must be writable, contiguous, of shape {tuple(x.shape)} and {dtype}, on the tensor's device."
        )
    return y


def _overlap(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors may share memory."""
    (a, size_a), (b, size_b) = ((t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in (x, y))
    return x.device == y.device and a < b + size_b and b < a + size_a


def _result_type(format: Format, dtype: torch.dtype) -> torch.dtype:
    """The tensor's own type, or the next wider one that can represent every value of the format."""
    for candidate in (dtype, torch.float32, torch.float64):
        carrier = CARRIERS[candidate]
        if isinstance(format, BlockFormat):  # its shared exponents are limited to the carrier's range
            holds = format.element.significant_bits <= carrier.mantissa + 1
        else:
            holds = fits(format, carrier)
        if holds and carrier.mantissa >= CARRIERS[dtype].mantissa:
            return candidate
    raise AssertionError(f"float64 can represent every value of every format, including {format}")


def _refuse_nans(nans: int, format: Scalar, rule: str) -> None:
    if nans and rule == "error" and not (isinstance(format, FloatFormat) and format.nans):
        raise UserError(
            f"{nans} of the numbers are NaN, which {format} cannot represent; nan='zero' rounds them to zero."
        )


def _random_bits(bits: int | None, dtype: torch.dtype, format: Scalar) -> int:
    """The bits of R: at most two fewer than a word has, so that variants B and C can detect halves and ties."""
    most = 60 if dtype == torch.float64 else 30
    if isinstance(format, FloatFormat) and format.subnormals != "gradual":
        most = min(most, 59 - format.mantissa)  # products with the smallest value stay below 2^63
    if bits is None:
        return most
    check_range(
        f"random_bits for {str(dtype).removeprefix('torch.')} to {format}", whole_number("random_bits", bits), 1, most
    )
    return bits
