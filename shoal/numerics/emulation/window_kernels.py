"""Windows of a convolution, copied from the input; compiled, as torch is slow at short strides."""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True, error_model="numpy")
def take_windows(
    x: NDArray[np.float32],
    seen: NDArray[np.float32],
    stride: tuple[int, int],
    before: tuple[int, int],
    dilation: tuple[int, int],
    first: int,
    last: int,
) -> int:
    """Rows first to last of (g, n, p, q) of `seen` (g, n, p, q, c, i, j), of x (n, g, c, h, w).

    x is padded with `before` zeros before its rows and columns, and with as many as needed after them. Returns 0.
    """
    images, rows, columns, channels, taps, across = seen.shape[1:]
    height, width = x.shape[3:]
    by_window = seen.reshape(-1, channels * taps * across)
    for window in range(first, last):
        q, left = window % columns, window // columns
        p, left = left % rows, left // rows
        n, g = left % images, left // images
        top, start = p * stride[0] - before[0], q * stride[1] - before[1]
        whole = start >= 0 and start + (across - 1) * dilation[1] < width
        target, k = by_window[window], 0
        for c in range(channels):
            for i in range(taps):
                h = top + i * dilation[0]
                if whole and 0 <= h < height:
                    line = x[n, g, c, h]
                    for j in range(across):
                        target[k] = line[start + j * dilation[1]]
                        k += 1
                    continue
                for j in range(across):
                    w = start + j * dilation[1]
                    target[k] = x[n, g, c, h, w] if 0 <= h < height and 0 <= w < width else np.float32(0)
                    k += 1
    return 0
