"""The results of studies, benches, profiles and quantization, as values to be rendered as text, JSON or figures.

Nothing here measures or draws, and nothing imports torch or matplotlib.
"""

from shoal.results.figure import Figure, Panel, Series
from shoal.results.provenance import Provenance
from shoal.results.result import Result
from shoal.results.table import Column, Table, Value, share_text

__all__ = ["Column", "Figure", "Panel", "Provenance", "Result", "Series", "Table", "Value", "share_text"]
