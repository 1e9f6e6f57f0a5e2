"""Frames in few colours."""

import numpy as np
from PIL import Image

from shoal.report.palette import indexed


def test_flat_areas_keep_their_exact_colours_and_noise_comes_near():
    random = np.random.default_rng(0)
    frames = []
    for _ in range(3):
        pixels = np.full((60, 80, 3), 255, np.uint8)
        pixels[:20] = (252, 253, 255)  # nearly white must not become white
        pixels[40:, :20] = random.integers(256, size=(20, 20, 3))
        frames.append(Image.fromarray(pixels))
    images = indexed(frames, 63)
    for frame, image in zip(frames, images, strict=True):
        assert image.mode == "P"
        before, after = np.array(frame).astype(int), np.array(image.convert("RGB")).astype(int)
        assert (after[:40] == before[:40]).all()
        assert np.abs(after - before)[40:, :20].mean() < 40
    assert images[0].getpalette() == images[1].getpalette()
    assert len({index for image in images for _, index in image.getcolors()}) <= 63


def test_single_flat_frame():
    (image,) = indexed([Image.new("RGB", (4, 4), (1, 2, 3))], 63)
    assert (np.array(image.convert("RGB")) == (1, 2, 3)).all()
