"""IDX files, the format of MNIST and its successors, compressed or not.

A file is two zero bytes, a type, the number of dimensions, each dimension as a big-endian 32-bit number, then the
values, big-endian as well.
"""

import contextlib
import gzip
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from shoal.classifiers.data.images import ImageData, Split
from shoal.errors import UserError
from shoal.system.memory import check_fits

FASHION_FOLDER = "/usr/share/datasets/fashion-mnist"
"""Where Debian's package installs the files."""
FASHION_SOURCE = "apt-get install dataset-fashion-mnist, or https://github.com/zalandoresearch/fashion-mnist"
TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
PREFIXES = {"train": ("train",), "test": ("t10k", "test")}
SHIFT = 2


def load_idx(folder: Path, flip: bool = False, source: str = "") -> ImageData:
    """The data set in a folder with the four files that MNIST has, e.g. train-images-idx3-ubyte.gz."""
    train, test = (_split(folder, part, source) for part in PREFIXES)
    classes = max(int(split.labels.max(initial=0)) for split in (train, test)) + 1
    return ImageData(train, test, classes, shift=SHIFT, flip=flip).checked(f"'{folder}'")


def _split(folder: Path, part: str, source: str) -> Split:
    images = read_idx(_find(folder, part, "images", 3, source), 3)
    labels = read_idx(_find(folder, part, "labels", 1, source), 1)
    if labels.dtype.kind == "f":
        raise UserError(f"'{folder}': {part} labels are floating-point numbers, but must be whole ones.")
    pixels = images if images.dtype == np.uint8 else images.astype(np.float32)
    return Split(pixels[:, None], labels.astype(np.int64))


def _find(folder: Path, part: str, what: str, dimensions: int, source: str) -> Path:
    """The file of this part, by any of the names that are in use."""
    hint = f"; get it with: {source}" if source else ""
    if not folder.is_dir():
        raise UserError(f"There is no folder '{folder}' with IDX files{hint}.")
    names = [
        f"{prefix}-{what}{separator}idx{dimensions}-ubyte{suffix}"
        for prefix in PREFIXES[part] for separator in "-." for suffix in ("", ".gz")
    ]  # fmt: skip
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"'{folder}' has no file {names[0]} or {names[1]}{hint}.")


def read_idx(path: Path, dimensions: int) -> NDArray[Any]:
    """The array of an IDX file, in the machine's byte order; a `UserError` if the file is damaged."""
    with _damage(path), gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        kind, shape = _header(file, path, dimensions)
        size = math.prod(shape) * kind.itemsize
        check_fits(f"'{path}'", 5 * size, lambda usable: "use a smaller data set")  # and its float32 values
        data = file.read(size + 1)  # to the end: gzip's checksum is checked there
        if len(data) != size:
            more = "more" if len(data) > size else f"{len(data):,}"
            raise UserError(f"'{path}' is damaged: it has {more} instead of {size:,} bytes of values.")
    return np.frombuffer(data, kind).reshape(shape).astype(kind.newbyteorder("="))


def _header(file: BinaryIO | gzip.GzipFile, path: Path, dimensions: int) -> tuple[np.dtype[Any], list[int]]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES:
        raise UserError(f"'{path}' is not an IDX file: it begins with {magic.hex(' ') or 'nothing'}.")
    if magic[3] != dimensions:
        raise UserError(f"'{path}' has {magic[3]} dimensions, but must have {dimensions}.")
    sizes = file.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise UserError(f"'{path}' is damaged: it ends within its header.")
    return np.dtype(TYPES[magic[2]]), np.frombuffer(sizes, ">u4").tolist()


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Errors of files and of gzip as one sentence."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"'{path}' is damaged: {str(error).rstrip('.')}.") from None
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from None
