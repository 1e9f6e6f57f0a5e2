"""The formats that others decide: ml_dtypes and numpy's float16, to the last bit."""

import ml_dtypes
import numpy as np
import pytest

from shoal.numerics import quantize
from tests.numerics.numbers import assert_same, float16_values, float32_patterns, same, scalar

ORACLES = [  # our name, theirs, and what they do beyond the largest value
    ("E5M10", np.float16, "infinity"),
    ("bf16", ml_dtypes.bfloat16, "infinity"),
    ("E5M2", ml_dtypes.float8_e5m2, "infinity"),
    ("E4M3", ml_dtypes.float8_e4m3, "infinity"),
    ("E3M4", ml_dtypes.float8_e3m4, "infinity"),
    ("E4M3FN", ml_dtypes.float8_e4m3fn, "nan"),
    ("E4M3B8FNUZ", ml_dtypes.float8_e4m3fnuz, "nan"),
    ("E5M2B16FNUZ", ml_dtypes.float8_e5m2fnuz, "nan"),
    ("E4M3B11FNUZ", ml_dtypes.float8_e4m3b11fnuz, "nan"),
    ("E2M3F", ml_dtypes.float6_e2m3fn, "saturate"),
    ("E3M2F", ml_dtypes.float6_e3m2fn, "saturate"),
    ("E2M1F", ml_dtypes.float4_e2m1fn, "saturate"),
]
NAMES = [name for name, _, _ in ORACLES]


def cast(x: np.ndarray, dtype: type) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x.astype(dtype).astype(np.float32)


@pytest.mark.parametrize(("name", "dtype", "overflow"), ORACLES, ids=NAMES)
def test_rounding_to_nearest_even(name: str, dtype: type, overflow: str) -> None:
    x = np.concatenate([float16_values(), float32_patterns(1), float32_patterns(2)])
    x = x if overflow != "saturate" else x[~np.isnan(x)]
    assert_same(quantize(x, name, overflow=overflow), cast(x, dtype), x)


@pytest.mark.parametrize("name", NAMES)
def test_float64_is_rounded_once(name: str) -> None:
    """Numbers next to a tie in float64, which a first rounding to float32 would put onto it."""
    format = scalar(name)
    ties = format.values()[1:] / 2 + format.values()[:-1] / 2
    x = np.concatenate([np.nextafter(ties, -np.inf), np.nextafter(ties, np.inf)])
    below, above = np.split(quantize(x, name), 2)
    values = format.values()
    keep = ties != 0
    assert np.array_equal(below[keep], values[:-1][keep])
    assert np.array_equal(above[keep], values[1:][keep])


@pytest.mark.parametrize(("name", "dtype", "overflow"), ORACLES, ids=NAMES)
def test_codes_match_ml_dtypes(name: str, dtype: type, overflow: str) -> None:
    format = scalar(name)
    bits = format.width
    codes = np.arange(2**bits, dtype=np.uint16 if bits == 16 else np.uint8)
    with np.errstate(invalid="ignore"):
        theirs = codes.view(dtype).astype(np.float64)
    ours = np.array([format.decode(int(code)) for code in codes])
    assert same(ours, theirs).all()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype", "overflow"), ORACLES, ids=NAMES)
def test_millions_of_values_match_ml_dtypes(name: str, dtype: type, overflow: str) -> None:
    x = np.random.default_rng(0).integers(0, 2**32, 2**24, dtype=np.uint32).view(np.float32)
    x = x if overflow != "saturate" else x[~np.isnan(x)]
    assert_same(quantize(x, name, overflow=overflow), cast(x, dtype), x)
