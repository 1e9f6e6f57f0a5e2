"""The callback that reports progress of long work."""

from collections.abc import Callable

Advance = Callable[[float, str], None]
"""Called with the amount of work done since the last call, and a description of the current work."""
