"""The results of studies, benches, profiles and quantization, as values to be rendered as text, JSON or figures.

Nothing here measures or draws, and nothing imports torch or matplotlib.
"""

from shoal.results.figure import Figure, Panel, Series
from shoal.results.result import Provenance, Result
from shoal.results.table import Column, Table, Value, estimate_text, share_text

ADVICE = "docs/advice.md says what to try when a team does not learn."
"""Where a reader of returns that are no better than random reads on."""

__all__ = [
    "ADVICE", "Column", "Figure", "Panel", "Provenance", "Result", "Series", "Table", "Value", "estimate_text",
    "share_text",
]  # fmt: skip
