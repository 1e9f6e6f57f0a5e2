"""Images with labels: checked, normalised and drawn in mini-batches. Shapes: B images, C channels, H = W = side."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.errors import UserError, counted
from shoal.seeding import stream

MOST_CLASSES = 1000
LEAST_SIDE, MOST_SIDE = 8, 256  # smaller images would have nothing left after a VGG's last stage

Pixels = NDArray[np.uint8] | NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Split:
    """Images (n, C, H, W) as they are stored, bytes or floats, and their labels (n,)."""

    images: Pixels
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, indices: NDArray[np.int64]) -> "Split":
        return Split(self.images[indices], self.labels[indices])


@dataclass(frozen=True, eq=False)
class ImageData:
    """A data set. `checked` refuses one that cannot be trained on."""

    train: Split
    test: Split
    classes: int
    shift: int  # augmentation: largest shift in pixels
    flip: bool  # augmentation: whether a mirrored image is of the same class

    @property
    def channels(self) -> int:
        return int(self.train.images.shape[1])

    @property
    def side(self) -> int:
        return int(self.train.images.shape[2])

    def checked(self, where: str) -> "ImageData":
        """The same, or a `UserError` about `where` the images come from."""
        _check_split(self.train, where, "training", self.classes)
        _check_split(self.test, where, "test", self.classes)
        if self.train.images.shape[1:] != self.test.images.shape[1:]:
            sizes = (" × ".join(map(str, split.images.shape[1:])) for split in (self.train, self.test))
            raise UserError(f"{where}: training images are {next(sizes)}, but test images {next(sizes)}.")
        height, width = self.train.images.shape[2:]
        if height != width or not LEAST_SIDE <= height <= MOST_SIDE:
            raise UserError(
                f"{where}: images are {height} × {width} pixels, but must be square with {LEAST_SIDE} to {MOST_SIDE} "
                "pixels per side."
            )
        if not 2 <= self.classes <= MOST_CLASSES:
            raise UserError(f"{where}: there are {self.classes:,} classes, but 2 to {MOST_CLASSES:,} are possible.")
        return self

    def first(self, train: int | None, test: int | None) -> "ImageData":
        """A smaller data set: this many images of each split, chosen at random but always the same ones."""
        return replace(self, train=_some(self.train, train, "train"), test=_some(self.test, test, "test"))

    @cached_property
    def statistics(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and standard deviation per channel (C,) of the training images."""
        channels = self.train.images.transpose(1, 0, 2, 3).reshape(self.channels, -1)
        mean = np.array([channel.mean(dtype=np.float64) for channel in channels])
        deviation = np.array([channel.std(dtype=np.float64) for channel in channels])
        return mean, np.where(deviation > 0, deviation, 1.0)

    def normalised(self, images: Pixels) -> NDArray[np.float32]:
        """Images with mean 0 and standard deviation 1 per channel over the training images."""
        mean, deviation = (values[:, None, None].astype(np.float32) for values in self.statistics)
        return (images.astype(np.float32) - mean) / deviation

    @cached_property
    def sha256(self) -> str:
        """Checksum of everything: a run is resumed with the data that it was trained with."""
        sums = hashlib.sha256()
        for split in (self.train, self.test):
            for array in (split.images, split.labels):
                sums.update(f"{array.dtype} {array.shape}".encode())
                sums.update(np.ascontiguousarray(array).data)
        return sums.hexdigest()


def _check_split(split: Split, where: str, what: str, classes: int) -> None:
    images: NDArray[Any] = split.images
    if len(images) != len(split.labels):
        raise UserError(
            f"{where}: there are {counted(len(images), f'{what} image')}, but {len(split.labels):,} labels."
        )
    if not len(images):
        raise UserError(f"{where}: there are no {what} images.")
    if images.ndim != 4:
        raise UserError(f"{where}: {what} images have {images.ndim} dimensions, but must have four: (n, C, H, W).")
    if images.dtype.kind == "f" and not np.isfinite(images).all():
        bad = next(number for number, image in enumerate(images) if not np.isfinite(image).all())
        raise UserError(f"{where}: {what} image {bad} has a pixel that is NaN or infinite.")
    wrong = (split.labels < 0) | (split.labels >= classes)
    if wrong.any():
        at = int(wrong.argmax())
        raise UserError(
            f"{where}: {what} image {at} has the label {split.labels[at]}, but labels are from 0 to {classes - 1}."
        )


def _some(split: Split, count: int | None, what: str) -> Split:
    if count is None or count == len(split):
        return split
    if count > len(split):
        raise UserError(f"`{what}_images` is {count:,}, but the data set has only {len(split):,}.")
    return split.part(np.sort(stream(0, f"{what} images").permutation(len(split))[:count]))


class TrainingBatches:
    """The mini-batches of all epochs; each epoch has its own order, and leaves out what does not fill a mini-batch.

    They are a pure function of data, seed and epoch, so that a run can be resumed anywhere.
    """

    def __init__(self, data: ImageData, batch: int, seed: int, augment: bool) -> None:
        self.data, self.batch, self.seed, self.augment = data, batch, seed, augment
        self.per_epoch = len(data.train) // batch
        self._epoch, self._order = -1, np.zeros(0, np.int64)
        self._moves: tuple[NDArray[Any], ...] = ()

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        """Images (B, C, H, W) and labels (B,) of a step, counted from the beginning of the training."""
        epoch, number = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = stream(self.seed, f"order of epoch {epoch}").permutation(len(self.data.train))
            self._moves = epoch_moves(self.data, self.seed, epoch) if self.augment else ()
        chosen = self._order[number * self.batch : (number + 1) * self.batch]
        images, labels = self.data.train.images[chosen], self.data.train.labels[chosen]
        if self.augment:
            images = moved(images, *(of_all[chosen] for of_all in self._moves))
        return torch.from_numpy(self.data.normalised(images)), torch.from_numpy(labels)


def epoch_moves(data: ImageData, seed: int, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """How every training image is augmented in one epoch: shifts (n, 2) in pixels, and whether it is mirrored (n,)."""
    rng, count = stream(seed, f"augmentation of epoch {epoch}"), len(data.train)
    return rng.integers(-data.shift, data.shift + 1, (count, 2)), rng.integers(0, 2, count).astype(bool) & data.flip


def moved(images: Pixels, shifts: NDArray[np.int64], flips: NDArray[np.bool_]) -> Pixels:
    """Images shifted (zeros move in) and mirrored."""
    most = int(np.abs(shifts).max(initial=0))
    if most:
        padded = np.pad(images, ((0, 0), (0, 0), (most, most), (most, most)))
        side = np.arange(images.shape[2])
        rows, columns = (most - shifts[:, axis, None] + side for axis in (0, 1))  # (B, H), (B, W)
        each = np.arange(len(images))
        images = padded[each[:, None, None, None], np.arange(images.shape[1])[:, None, None],
                        rows[:, None, :, None], columns[:, None, None, :]]  # fmt: skip
    mirrored: Pixels = np.where(flips[:, None, None, None], images[..., ::-1], images)
    return mirrored


def in_order(data: ImageData, split: Split, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All images of a split with their labels, in their order and as they are."""
    for start in range(0, len(split), batch):
        images, labels = split.images[start : start + batch], split.labels[start : start + batch]
        yield torch.from_numpy(data.normalised(images)), torch.from_numpy(labels)
