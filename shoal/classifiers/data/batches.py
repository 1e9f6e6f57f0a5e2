"""Mini-batches: a pure function of data, seed and epoch, so that a run can be resumed anywhere."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from shoal.classifiers.data.images import ImageData, Pixels, Split
from shoal.seeding import stream


class TrainingBatches:
    """The mini-batches of all epochs; each epoch has its own order, and leaves out what does not fill a mini-batch."""

    def __init__(self, data: ImageData, batch: int, seed: int, augment: bool) -> None:
        self.data, self.batch, self.seed, self.augment = data, batch, seed, augment
        self.per_epoch = len(data.train) // batch
        self._epoch, self._order = -1, np.zeros(0, np.int64)
        self._moves = Moves.none(0)

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        """Images (B, C, H, W) and labels (B,) of a step, counted from the beginning of the training."""
        epoch, number = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = stream(self.seed, f"order of epoch {epoch}").permutation(len(self.data.train))
            self._moves = epoch_moves(self.data, self.seed, epoch) if self.augment else Moves.none(len(self.data.train))
        chosen = self._order[number * self.batch : (number + 1) * self.batch]
        images = moved(self.data.train.images[chosen], self._moves, chosen)
        return torch.from_numpy(self.data.normalised(images)), torch.from_numpy(self.data.train.labels[chosen])


class Moves:
    """How each image is augmented: shifts (n, 2) in pixels, and whether it is mirrored (n,)."""

    def __init__(self, shifts: np.ndarray, flips: np.ndarray) -> None:
        self.shifts, self.flips = shifts, flips

    @classmethod
    def none(cls, count: int) -> "Moves":
        """No augmentation."""
        return cls(np.zeros((count, 2), np.int64), np.zeros(count, bool))


def epoch_moves(data: ImageData, seed: int, epoch: int) -> Moves:
    """The augmentation of every training image in one epoch."""
    rng, count = stream(seed, f"augmentation of epoch {epoch}"), len(data.train)
    shifts = rng.integers(-data.shift, data.shift + 1, (count, 2))
    return Moves(shifts, rng.integers(0, 2, count).astype(bool) & data.flip)


def moved(images: Pixels, moves: Moves, chosen: np.ndarray) -> Pixels:
    """These images, which have the numbers `chosen`, shifted (zeros move in) and mirrored."""
    shifts, flips = moves.shifts[chosen], moves.flips[chosen]
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
