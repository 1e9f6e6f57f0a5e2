"""Image data sets: scikit-learn's digits, Fashion-MNIST or any folder of IDX files, CIFAR-10's binary batches."""

import contextlib
import gzip
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.classifiers.images import ImageData, Split
from shoal.errors import UserError, install, printable
from shoal.seeding import stream
from shoal.system.memory import check_fits

NAMES = "digits, fashion-mnist, fashion-mnist:FOLDER, idx:FOLDER or cifar10:FOLDER"
DIGITS_TEST_SHARE = 5  # every fifth image of each class, in a random but fixed order, is a test image of the digits
FASHION_FOLDER = "/usr/share/datasets/fashion-mnist"  # where Debian's package installs the files
FASHION_SOURCE = "apt-get install dataset-fashion-mnist, or https://github.com/zalandoresearch/fashion-mnist"
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
IDX_PREFIXES = {"train": ("train",), "test": ("t10k", "test")}
IDX_SHIFT, CIFAR_SHIFT = 2, 4  # augmentation: largest shifts in pixels
CIFAR_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CIFAR_TEST = ("test_batch.bin",)
CIFAR_RECORDS, CIFAR_BYTES = 10_000, 1 + 3 * 32 * 32
"""Records of a file, and the bytes of each: a label, then three channels of pixels."""
CIFAR_SOURCE = "https://www.cs.toronto.edu/~kriz/cifar.html (binary version)"


def load_digits() -> ImageData:
    """The digits, with a split that is always the same and has the same share of each class in both parts."""
    try:
        from sklearn.datasets import load_digits as load
    except ImportError:
        raise UserError(f"`data=digits` comes with scikit-learn, which is not installed: {install('data')}.") from None
    images, labels = load(return_X_y=True)
    whole = Split(images.reshape(-1, 1, 8, 8).astype(np.uint8), labels.astype(np.int64))  # 0 to 16
    shares = []
    for label in np.unique(whole.labels):
        shuffled = stream(0, f"test digits {label}").permutation(np.flatnonzero(whole.labels == label))
        shares.append(shuffled[: round(len(shuffled) / DIGITS_TEST_SHARE)])
    test = np.sort(np.concatenate(shares))
    rest = np.setdiff1d(np.arange(len(whole)), test)
    return ImageData(whole.part(rest), whole.part(test), 10, shift=1, flip=False).checked("scikit-learn's digits")


def load_idx(folder: Path, flip: bool = False, source: str = "") -> ImageData:
    """The data set in a folder with the four files that MNIST has, e.g. train-images-idx3-ubyte.gz."""
    train, test = (_idx_split(folder, part, source) for part in IDX_PREFIXES)
    classes = max(int(split.labels.max(initial=0)) for split in (train, test)) + 1
    return ImageData(train, test, classes, shift=IDX_SHIFT, flip=flip).checked(f"'{folder}'")


def _idx_split(folder: Path, part: str, source: str) -> Split:
    images = read_idx(_idx_file(folder, part, "images", 3, source), 3)
    labels = read_idx(_idx_file(folder, part, "labels", 1, source), 1)
    if labels.dtype.kind == "f":
        raise UserError(f"'{folder}': {part} labels are floating-point numbers, but must be whole ones.")
    pixels = images if images.dtype == np.uint8 else images.astype(np.float32)
    return Split(pixels[:, None], labels.astype(np.int64))


def _idx_file(folder: Path, part: str, what: str, dimensions: int, source: str) -> Path:
    """The file of this part, by any of the names that are in use."""
    hint = f"; get it with: {source}" if source else ""
    if not folder.is_dir():
        raise UserError(f"There is no folder '{folder}' with IDX files{hint}.")
    names = [
        f"{prefix}-{what}{separator}idx{dimensions}-ubyte{suffix}"
        for prefix in IDX_PREFIXES[part] for separator in "-." for suffix in ("", ".gz")
    ]  # fmt: skip
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"'{folder}' has no file {names[0]} or {names[1]}{hint}.")


def read_idx(path: Path, dimensions: int) -> NDArray[Any]:
    """The array of an IDX file, in the machine's byte order; a `UserError` if the file is damaged.

    A file is two zero bytes, a type, the number of dimensions, each dimension as a big-endian 32-bit number, then the
    values, big-endian as well. It may be compressed.
    """
    with _damage(path), gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        magic = file.read(4)
        if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in IDX_TYPES:
            raise UserError(f"'{path}' is not an IDX file: it begins with {magic.hex(' ') or 'nothing'}.")
        if magic[3] != dimensions:
            raise UserError(f"'{path}' has {magic[3]} dimensions, but must have {dimensions}.")
        sizes = file.read(4 * dimensions)
        if len(sizes) < 4 * dimensions:
            raise UserError(f"'{path}' is damaged: it ends within its header.")
        kind, shape = np.dtype(IDX_TYPES[magic[2]]), np.frombuffer(sizes, ">u4").tolist()
        size = math.prod(shape) * kind.itemsize
        check_fits(f"'{path}'", 5 * size, lambda usable: "use a smaller data set")  # and its float32 values
        data = file.read(size + 1)  # to the end: gzip's checksum is checked there
        if len(data) != size:
            more = "more" if len(data) > size else f"{len(data):,}"
            raise UserError(f"'{path}' is damaged: it has {more} instead of {size:,} bytes of values.")
    return np.frombuffer(data, kind).reshape(shape).astype(kind.newbyteorder("="))


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Errors of files and of gzip as one sentence."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"'{path}' is damaged: {str(error).rstrip('.')}.") from None
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from None


def load_cifar(folder: Path) -> ImageData:
    """CIFAR-10 from the folder with its files, or the one that holds their folder `cifar-10-batches-bin`."""
    inside = folder / "cifar-10-batches-bin"
    place = inside if inside.is_dir() else folder
    if not place.is_dir():
        raise UserError(f"There is no folder '{folder}' with CIFAR-10's binary batches; get them from {CIFAR_SOURCE}.")
    train, test = (_cifar_split(place, files) for files in (CIFAR_TRAIN, CIFAR_TEST))
    return ImageData(train, test, 10, shift=CIFAR_SHIFT, flip=True).checked(f"'{place}'")


def _cifar_split(folder: Path, names: tuple[str, ...]) -> Split:
    records = []
    for name in names:
        path = folder / name
        with _damage(path):
            if not path.exists():
                raise UserError(f"'{folder}' has no file {name}; get it from {CIFAR_SOURCE}.")
            data = np.fromfile(path, np.uint8)
        if len(data) != CIFAR_RECORDS * CIFAR_BYTES:
            raise UserError(
                f"'{path}' is damaged: it has {len(data):,} instead of {CIFAR_RECORDS * CIFAR_BYTES:,} bytes; get it "
                f"from {CIFAR_SOURCE}."
            )
        records.append(data.reshape(CIFAR_RECORDS, CIFAR_BYTES))
    whole = np.concatenate(records)
    return Split(whole[:, 1:].reshape(-1, 3, 32, 32), whole[:, 0].astype(np.int64))


FOLDERS: Mapping[str, Callable[[Path], ImageData]] = {
    "fashion-mnist": lambda folder: load_idx(folder, flip=True, source=FASHION_SOURCE),
    "idx": load_idx,
    "cifar10": load_cifar,
}
"""Data sets that are read from a folder, as NAME:FOLDER."""


def load_data(name: str) -> ImageData:
    """The data set of this name: digits, fashion-mnist, fashion-mnist:FOLDER, idx:FOLDER or cifar10:FOLDER."""
    check_data_name(name)
    if name == "digits":
        return load_digits()
    kind, _, folder = name.partition(":")
    return FOLDERS[kind](Path(folder or FASHION_FOLDER))


def check_data_name(name: str) -> None:
    """Refuse what is no name of a data set; whether its files exist is known when they are read."""
    kind, colon, folder = name.partition(":")
    if colon and not folder and kind in FOLDERS:
        raise UserError(f"`data` '{printable(name)}' names no folder after the colon.")
    if name in ("digits", "fashion-mnist") or (colon and kind in FOLDERS):
        return
    if kind in FOLDERS:
        raise UserError(f"`data={kind}` needs the folder of its files: {kind}:FOLDER.")
    raise UserError(f"`data` '{printable(name)}' is not known; use {NAMES}.")
