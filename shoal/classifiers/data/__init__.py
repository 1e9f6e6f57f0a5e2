"""Image data sets: scikit-learn's digits, Fashion-MNIST or any folder of IDX files, CIFAR-10's binary batches."""

from collections.abc import Callable, Mapping
from pathlib import Path

from shoal.classifiers.data.cifar import load_cifar
from shoal.classifiers.data.digits import load_digits
from shoal.classifiers.data.idx import FASHION_FOLDER, FASHION_SOURCE, load_idx
from shoal.classifiers.data.images import ImageData, Split
from shoal.errors import UserError, printable

FOLDERS: Mapping[str, Callable[[Path], ImageData]] = {
    "fashion-mnist": lambda folder: load_idx(folder, flip=True, source=FASHION_SOURCE),
    "idx": load_idx,
    "cifar10": load_cifar,
}
"""Data sets that are read from a folder, as NAME:FOLDER."""
NAMES = "digits, fashion-mnist, fashion-mnist:FOLDER, idx:FOLDER or cifar10:FOLDER"

__all__ = ["ImageData", "NAMES", "Split", "check_data_name", "load_data"]


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
        raise UserError(f"--data '{printable(name)}' names no folder after the colon.")
    if name in ("digits", "fashion-mnist") or (colon and kind in FOLDERS):
        return
    if kind in FOLDERS:
        raise UserError(f"--data {kind} needs the folder of its files: {kind}:FOLDER.")
    raise UserError(f"--data '{printable(name)}' is not known; use {NAMES}.")
