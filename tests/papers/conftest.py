"""Figures of the studies are drawn."""

import pytest


@pytest.fixture(autouse=True)
def real_pictures(rendered):
    """As in tests/report."""
