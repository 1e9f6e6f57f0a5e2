"""Frames of a GIF in few colours."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image


def indexed(frames: "list[Image.Image]", most: int) -> "list[Image.Image]":
    """The frames in one palette of `most` colours, which keeps the file small and colours from flickering.

    32 of them are the most common ones, exactly (flat areas and white are unchanged); the rest are
    spread over all others. Pillow's own search for the nearest colour is coarse, hence the table.
    """
    from PIL import Image

    sample = frames[:: math.ceil(len(frames) / 8)]
    montage = Image.new("RGB", (frames[0].width, frames[0].height * len(sample)))
    for number, frame in enumerate(sample):
        montage.paste(frame, (0, number * frame.height))
    counted: Any = sorted(montage.getcolors(montage.width * montage.height) or [], reverse=True)
    spread = np.array(montage.quantize(most - 32).getpalette()).reshape(-1, 3)
    palette = np.concatenate([[colour for _, colour in counted[:32]], spread])  # (colours, 3)

    present = np.zeros(1 << 24, bool)
    for frame in frames:
        present[_packed(frame)] = True
    colours = np.flatnonzero(present)
    rgb = np.stack([colours & 255, colours >> 8 & 255, colours >> 16], axis=1)
    nearest = np.zeros(1 << 24, np.uint8)
    parts = np.array_split(rgb, len(rgb) // 10_000 + 1)  # photographs have a million colours
    nearest[colours] = np.concatenate([np.square(part[:, None] - palette).sum(axis=2).argmin(axis=1) for part in parts])
    images = [Image.fromarray(nearest[_packed(frame)]) for frame in frames]
    for image in images:
        image.putpalette(palette.astype(np.uint8).tobytes())
    return images


def _packed(frame: "Image.Image") -> NDArray[np.integer]:
    """(height, width) colours as one number each: red + 256 green + 65536 blue."""
    pixels = np.frombuffer(frame.convert("RGBX").tobytes(), "<u4").reshape(frame.height, frame.width)
    return pixels & 0xFFFFFF
