"""Least-squares fits of a few tabulated figures, with their residuals and range of validity."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Point = tuple[int, ...]


@dataclass(frozen=True)
class Estimate:
    """A fitted figure."""

    value: float
    error: float | None
    """Standard error; None if the fit has as many coefficients as rows, so no degrees of freedom are left."""
    inside: bool
    """Whether the point lies in the convex hull of the fit's rows: interpolated, not extrapolated."""


@dataclass(frozen=True)
class Fit:
    """figure ≈ Σ coefficient·term(point) over tabulated points of one axis, (width,), or two, (exponent, mantissa)."""

    name: str
    terms: tuple[str, ...]  # the terms in readable form
    values: Callable[[Point], tuple[float, ...]]  # the values of the terms at a point
    rows: Mapping[Point, float]

    @cached_property
    def coefficients(self) -> NDArray[np.float64]:
        """One per term."""
        return np.linalg.lstsq(self._design, np.array(list(self.rows.values()), dtype=float), rcond=None)[0]

    @cached_property
    def residuals(self) -> dict[Point, float]:
        """Table minus fit, by row."""
        return {point: figure - float(self._at(point)) for point, figure in self.rows.items()}

    @cached_property
    def deviation(self) -> float | None:
        """Standard deviation of a row about the fit; None if the fit has as many coefficients as rows."""
        free = len(self.rows) - len(self.terms)
        return math.sqrt(sum(miss**2 for miss in self.residuals.values()) / free) if free else None

    def __call__(self, point: Point) -> Estimate:
        """The fitted figure at a point, whether it is tabulated or not."""
        terms = np.array(self.values(point), dtype=float)
        if self.deviation is None:
            error = None
        else:
            spread = float(terms @ np.linalg.pinv(self._design.T @ self._design) @ terms)
            error = self.deviation * math.sqrt(1 + spread)
        return Estimate(self._at(point), error, within(list(self.rows), point))

    def formula(self) -> str:
        """The fit in readable form: 41.4 + 11·e + 18.1·m."""
        numbers = [f"{float(f'{coefficient:.4g}'):g}" for coefficient in self.coefficients]
        parts = [n if term == "1" else f"{n}·{term}" for n, term in zip(numbers, self.terms, strict=True)]
        return " + ".join(parts).replace("+ -", "− ").replace("-", "−")

    @cached_property
    def _design(self) -> NDArray[np.float64]:
        return np.array([self.values(point) for point in self.rows], dtype=float)

    def _at(self, point: Point) -> float:
        return float(np.array(self.values(point), dtype=float) @ self.coefficients)


def within(points: list[Point], point: Point) -> bool:
    """Whether a point lies in the convex hull of others, in one or two dimensions."""
    if len(point) == 1:
        return min(points) <= point <= max(points)
    for corners in combinations(points, 3):  # also collinear ones, where the bounding box decides
        boxed = all(min(axis) <= x <= max(axis) for x, axis in zip(point, zip(*corners, strict=True), strict=True))
        sides = zip(corners, corners[1:] + corners[:1], strict=True)
        turns = [(b[0] - a[0]) * (point[1] - a[1]) - (b[1] - a[1]) * (point[0] - a[0]) for a, b in sides]
        if boxed and (min(turns) >= 0 or max(turns) <= 0):
            return True
    return False
