"""Fixtures shared with the tests of quantization and of the command line."""

from tests.cli.conftest import tidy  # noqa: F401
from tests.quantization.conftest import run  # noqa: F401
