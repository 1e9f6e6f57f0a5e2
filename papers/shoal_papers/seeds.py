"""Means and intervals over seeds, and curves with their spread."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.results import Series
from shoal.training.returns import confidence95

NOT_RUN = "not run"


def mean(values: Sequence[float]) -> float:
    """The mean."""
    return sum(values) / len(values)


def mean_or_none(values: Sequence[float] | None) -> float | None:
    """The mean, if there are any."""
    return mean(values) if values else None


def half_width(values: Sequence[float] | None) -> float | None:
    """Half-width of the 95 % interval (Student's t); None with fewer than two."""
    return confidence95(np.array(values)) if values and len(values) > 1 else None


def with_interval(values: Sequence[float], scale: float = 1.0, sign: bool = False) -> str:
    """Mean ± half-width, times `scale`; without seeds: not run."""
    if not values:
        return NOT_RUN
    half = half_width(values)
    text = f"{scale * mean(values):{'+' if sign else ''},.1f}"
    return text if half is None else f"{text} ± {scale * half:,.1f}"


def spread(label: str, at: ArrayLike, values: NDArray[np.float64]) -> Series:
    """The mean of curves (seeds, points), in a band from the worst to the best seed."""
    low, middle, high = values.min(0).tolist(), values.mean(0).tolist(), values.max(0).tolist()
    return Series(label, middle, at=np.asarray(at).tolist(), low=low, high=high)
