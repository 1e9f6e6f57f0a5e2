"""The coverage of an emulation, as a table."""

import torch

from shoal.numerics import emulate
from tests.numerics.emulation.test_emulate import FLOAT, tensor


def test_coverage_table() -> None:
    square = tensor((4, 4))
    with emulate(FLOAT, strict=False) as emulation:
        square @ square
        torch.det(square)
    assert str(emulation.coverage()).splitlines() == [
        "function  role     calls  MACs  arithmetic",
        "matmul    forward      1    64  emulated",
        "det       forward      1     –  plain",
    ]
