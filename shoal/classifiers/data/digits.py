"""scikit-learn's digits: 1,797 images of 8 × 8 pixels, which come with the library."""

import numpy as np
from numpy.typing import NDArray

from shoal.classifiers.data.images import ImageData, Split
from shoal.errors import UserError, install
from shoal.seeding import stream

TEST_SHARE = 5
"""Every fifth image of each class, in a random but fixed order, is a test image."""


def load_digits() -> ImageData:
    """The digits, with a split that is always the same and has the same share of each class in both parts."""
    try:
        from sklearn.datasets import load_digits as load
    except ImportError:
        raise UserError(f"--data digits comes with scikit-learn, which is not installed: {install('data')}.") from None
    images, labels = load(return_X_y=True)
    whole = Split(images.reshape(-1, 1, 8, 8).astype(np.uint8), labels.astype(np.int64))  # 0 to 16
    test = test_indices(whole.labels)
    rest = np.setdiff1d(np.arange(len(whole)), test)
    return ImageData(whole.part(rest), whole.part(test), 10, shift=1, flip=False).checked("scikit-learn's digits")


def test_indices(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The test images, in their order: the same share of each class."""
    chosen = []
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        chosen.append(stream(0, f"test digits {label}").permutation(own)[: round(len(own) / TEST_SHARE)])
    return np.sort(np.concatenate(chosen))
