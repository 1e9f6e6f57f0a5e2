"""CIFAR-10's binary batches: records of a label and 3 × 32 × 32 pixels, 10,000 in each of six files."""

from pathlib import Path

import numpy as np

from shoal.classifiers.data.images import ImageData, Split
from shoal.errors import UserError

TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILES = ("test_batch.bin",)
RECORDS = 10_000
RECORD_BYTES = 1 + 3 * 32 * 32
SOURCE = "https://www.cs.toronto.edu/~kriz/cifar.html (binary version)"
SHIFT = 4


def load_cifar(folder: Path) -> ImageData:
    """CIFAR-10 from the folder with its files, or the one that holds their folder `cifar-10-batches-bin`."""
    inside = folder / "cifar-10-batches-bin"
    place = inside if inside.is_dir() else folder
    if not place.is_dir():
        raise UserError(f"There is no folder '{folder}' with CIFAR-10's binary batches; get them from {SOURCE}.")
    train, test = (_read(place, files) for files in (TRAIN_FILES, TEST_FILES))
    return ImageData(train, test, 10, shift=SHIFT, flip=True).checked(f"'{place}'")


def _read(folder: Path, names: tuple[str, ...]) -> Split:
    records = []
    for name in names:
        path = folder / name
        try:
            data = np.fromfile(path, np.uint8)
        except FileNotFoundError:
            raise UserError(f"'{folder}' has no file {name}; get it from {SOURCE}.") from None
        except OSError as error:
            raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from None
        if len(data) != RECORDS * RECORD_BYTES:
            raise UserError(
                f"'{path}' is damaged: it has {len(data):,} instead of {RECORDS * RECORD_BYTES:,} bytes; get it from "
                f"{SOURCE}."
            )
        records.append(data.reshape(RECORDS, RECORD_BYTES))
    whole = np.concatenate(records)
    return Split(whole[:, 1:].reshape(-1, 3, 32, 32), whole[:, 0].astype(np.int64))
