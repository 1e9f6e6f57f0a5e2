"""A finished run."""

from dataclasses import replace

import pytest

from shoal import train
from tests.quantization.teams import SMALL


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of three agents with choices."""
    folder = tmp_path_factory.mktemp("runs") / "team"
    train(replace(SMALL, out=str(folder)))
    return folder
