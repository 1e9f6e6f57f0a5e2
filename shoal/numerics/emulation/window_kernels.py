"""Images with zeros around and between their numbers, so that windows of a convolution can be read in place."""

import numpy as np
from numpy.typing import NDArray

from shoal.compiled import njit


@njit(cache=True, nogil=True, error_model="numpy")
def surround(
    x: NDArray[np.float32],
    whole: NDArray[np.float32],
    before: tuple[int, int],
    stride: tuple[int, int],
    first: int,
    last: int,
) -> int:
    """Images first to last of x (images, h, w) amid zeros in `whole`, `stride` apart; what is outside is left out.

    `before` is the number of zeros before the rows and before the columns; negative numbers crop. Returns 0.
    """
    height, width = x.shape[1:]
    rows, columns = whole.shape[1:]
    # The first and last column of x that is inside.
    start = max(0, -(before[1] // stride[1]))
    end = min(width, (columns - 1 - before[1]) // stride[1] + 1)
    for n in range(first, last):
        whole[n] = np.float32(0)
        for h in range(height):
            row = before[0] + h * stride[0]
            if 0 <= row < rows:
                if stride[1] == 1:
                    for w in range(start, end):
                        whole[n, row, before[1] + w] = x[n, h, w]
                else:
                    for w in range(start, end):
                        whole[n, row, before[1] + w * stride[1]] = x[n, h, w]
    return 0
