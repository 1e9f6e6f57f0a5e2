"""What studies, benches, profiles and quantization return: values that console, JSON, pictures and pages render.

Nothing here measures or draws, and nothing imports torch or matplotlib.
"""

from shoal.results.figure import Figure, Panel, Series
from shoal.results.provenance import Provenance
from shoal.results.result import Result
from shoal.results.table import Column, Table, Value

__all__ = ["Column", "Figure", "Panel", "Provenance", "Result", "Series", "Table", "Value"]
