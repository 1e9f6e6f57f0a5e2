"""Data sets: splits, files and what may be wrong with them; mini-batches and augmentation."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from shoal.classifiers import data as data_module
from shoal.classifiers.data import FASHION_FOLDER, load_data
from shoal.classifiers.images import ImageData, Split, TrainingBatches, epoch_moves, in_order, moved
from shoal.errors import UserError
from tests.classifiers.helpers import IDX_NAMES, idx, write_cifar, write_idx


@pytest.fixture(scope="module")
def digits():
    return load_data("digits")


def test_the_split_of_digits_is_stratified(digits):
    assert (digits.channels, digits.side, digits.classes) == (1, 8, 10)
    assert len(digits.train) + len(digits.test) == 1797
    for label in range(10):
        of_test, of_train = (np.sum(split.labels == label) for split in (digits.test, digits.train))
        assert of_test == round((of_test + of_train) / 5)
    assert load_data("digits").sha256 == digits.sha256
    assert not digits.flip and digits.shift == 1


def test_images_are_normalised(digits):
    images = digits.normalised(digits.train.images)
    assert images.dtype == np.float32 and images.shape == (len(digits.train), 1, 8, 8)
    assert abs(images.mean()) < 1e-4 and abs(images.std() - 1) < 1e-4


def test_subset_of_the_images(digits):
    some = digits.first(100, 50)
    assert (len(some.train), len(some.test)) == (100, 50)
    assert some.sha256 == digits.first(100, 50).sha256 != digits.sha256
    with pytest.raises(UserError, match="`train_images` is 5,000, but the data set has only 1,438"):
        digits.first(5000, None)


# ---- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("kind", ["idx", "fashion-mnist"])
def test_idx_files(tmp_path, compressed, kind):
    folder = write_idx(tmp_path / "set", compressed=compressed)
    data = load_data(f"{kind}:{folder}")
    assert (len(data.train), len(data.test), data.side, data.classes, data.channels) == (40, 20, 8, 3, 1)
    assert data.flip == (kind == "fashion-mnist")
    rng = np.random.default_rng(0)
    assert np.array_equal(data.train.images[:, 0], rng.integers(0, 256, (40, 8, 8)))
    assert np.array_equal(data.test.labels, np.arange(20) % 3)


def test_idx_files_of_floats(tmp_path):
    values = np.linspace(-1, 1, 40 * 64).reshape(40, 8, 8)
    folder = write_idx(tmp_path / "set", changed={("train", "images"): idx(values, 0x0E, ">f8")})
    assert np.array_equal(load_data(f"idx:{folder}").train.images[:, 0], values.astype(np.float32))


IMAGES, LABELS = np.zeros((40, 8, 8)), np.arange(40) % 3
NOT_A_NUMBER = np.where(np.arange(40 * 64).reshape(40, 8, 8) == 700, np.nan, 1.0)


@pytest.mark.parametrize(
    ("what", "content", "sentence"),
    [
        ("images", b"", "is not an IDX file: it begins with nothing"),
        ("images", b"\x89PNG and so on", "is not an IDX file: it begins with 89 50 4e 47"),
        ("images", b"\0\0\x07\x03" + bytes(99), "is not an IDX file"),
        ("images", idx(LABELS), "has 1 dimensions, but must have 3"),
        ("images", idx(IMAGES)[:10], "ends within its header"),
        ("images", idx(IMAGES)[:-1], "has 2,559 instead of 2,560 bytes of values"),
        ("images", idx(IMAGES) + b"!", "has more instead of 2,560 bytes of values"),
        ("images", idx(IMAGES[:39]), "there are 39 training images, but 40 labels"),
        ("images", idx(IMAGES[:, :7]), "training images are 1 × 7 × 8, but test images 1 × 8 × 8"),
        ("images", idx(NOT_A_NUMBER, 0x0D, ">f4"), "training image 10 has a pixel that is NaN or infinite"),
        ("images", b"\0\0\x0e\x03" + b"\xff" * 12, "of memory is free"),
        ("labels", idx(LABELS[:0]), "there are 40 training images, but 0 labels"),
        ("labels", idx(LABELS - 1, 0x09, ">i1"), "training image 0 has the label -1"),
        ("labels", idx(LABELS, 0x0D, ">f4"), "labels are floating-point numbers"),
        ("labels", idx(LABELS * 10**6, 0x0C, ">i4"), "there are 2,000,001 classes"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("compressed", [True, False])
def test_damaged_idx_files_are_refused(tmp_path, what, content, sentence, compressed):
    folder = write_idx(tmp_path / "set", compressed=compressed, changed={("train", what): content})
    with pytest.raises(UserError, match=sentence) as error:
        load_data(f"idx:{folder}")
    assert str(folder) in str(error.value) and str(error.value).endswith(".")


@pytest.mark.parametrize("harm", ["cut", "flipped", "trailing"])
def test_damaged_gzip_is_refused(tmp_path, harm):
    path = write_idx(tmp_path / "set") / "train-images-idx3-ubyte.gz"
    data = bytearray(gzip.compress(idx(np.random.default_rng(1).integers(0, 256, (40, 8, 8)))))
    if harm == "flipped":
        data[len(data) // 2] ^= 8
    path.write_bytes(data[:-40] if harm == "cut" else data + b"rubbish" if harm == "trailing" else data)
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte.gz' is damaged: "):
        load_data(f"idx:{path.parent}")


@pytest.mark.parametrize("missing", IDX_NAMES.values())
def test_missing_idx_file_names_its_source(tmp_path, missing):
    folder = write_idx(tmp_path / "set")
    (folder / f"{missing}.gz").unlink()
    with pytest.raises(UserError, match=f"has no file {missing} or {missing}.gz; get it with: apt-get install"):
        load_data(f"fashion-mnist:{folder}")


def test_non_square_images_are_refused(tmp_path):
    wide = {("train", "images"): idx(np.zeros((40, 8, 9))), ("test", "images"): idx(np.zeros((20, 8, 9)))}
    folder = write_idx(tmp_path / "set", changed=wide)
    with pytest.raises(UserError, match="images are 8 × 9 pixels, but must be square"):
        load_data(f"idx:{folder}")


def test_cifar(tmp_path, monkeypatch):
    monkeypatch.setattr(data_module, "CIFAR_RECORDS", 6)
    folder = write_cifar(tmp_path / "cifar-10-batches-bin", 6)
    data = load_data(f"cifar10:{folder}")
    assert (len(data.train), len(data.test), data.channels, data.side, data.classes) == (30, 6, 3, 32, 10)
    assert load_data(f"cifar10:{tmp_path}").sha256 == data.sha256 and data.flip and data.shift == 4
    record = np.frombuffer((folder / "data_batch_2.bin").read_bytes(), np.uint8)[:3073]
    assert data.train.labels[6] == record[0] and np.array_equal(data.train.images[6].ravel(), record[1:])

    path = folder / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"data_batch_3.bin' is damaged: it has 18,437 instead of 18,438 bytes; get it"):
        load_data(f"cifar10:{folder}")
    path.write_bytes(b"\x0a" * 6 * 3073)
    with pytest.raises(UserError, match="training image 12 has the label 10, but labels are from 0 to 9"):
        load_data(f"cifar10:{folder}")
    path.unlink()
    with pytest.raises(UserError, match=r"has no file data_batch_3.bin; get it from https://www.cs.toronto.edu"):
        load_data(f"cifar10:{folder}")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mnist", "`data` 'mnist' is not known; use digits, fashion-mnist"),
        ("digits:here", "`data` 'digits:here' is not known"), ("cifar10", "`data=cifar10` needs the folder"),
        ("idx:", "names no folder after the colon"), ("", "`data` '' is not known"),
        ("idx:nowhere", "There is no folder 'nowhere' with IDX files"),
        ("fashion-mnist:nowhere", "get it with: apt-get install dataset-fashion-mnist"),
        ("cifar10:nowhere", "There is no folder 'nowhere' with CIFAR-10's binary batches; get them from https"),
    ],
)  # fmt: skip
def test_unknown_data_names_are_refused(tmp_path, monkeypatch, name, sentence):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=sentence):
        load_data(name)


@pytest.mark.skipif(not Path(FASHION_FOLDER).is_dir(), reason="needs Debian's dataset-fashion-mnist")
def test_fashion_mnist():
    data = load_data("fashion-mnist")
    assert (len(data.train), len(data.test), data.side, data.classes) == (60_000, 10_000, 28, 10)
    assert np.array_equal(np.bincount(data.train.labels), [6000] * 10)


# ---- mini-batches --------------------------------------------------------------------------------------------------


def test_mini_batches_are_a_function_of_seed_and_step(digits):
    some = digits.first(50, None)
    batches, again = (TrainingBatches(some, 16, 3, augment=True) for _ in range(2))
    steps = [7, 2, 0, 5, 2]  # three per epoch, in any order
    for step, (images, labels) in zip(steps, [batches[step] for step in steps], strict=True):
        same_images, same_labels = again[step]
        assert np.array_equal(images, same_images) and np.array_equal(labels, same_labels)
    assert not np.array_equal(batches[0][0], batches[3][0])
    assert not np.array_equal(batches[0][0], TrainingBatches(some, 16, 4, augment=True)[0][0])


def test_an_epoch_has_every_image_at_most_once(digits):
    some = digits.first(50, None)
    batches = TrainingBatches(some, 16, 0, augment=False)
    assert batches.per_epoch == 3
    drawn = np.concatenate([batches[step][0] for step in range(3)])
    whole = np.concatenate([images for images, _ in in_order(some, some.train, 16)])
    found = [int(np.flatnonzero((whole == image).all((1, 2, 3)))[0]) for image in drawn]
    assert len(set(found)) == 48


def test_augmentation_matches_a_plain_loop():
    rng = np.random.default_rng(0)
    split = Split(rng.integers(1, 256, (30, 2, 9, 9)).astype(np.uint8), np.arange(30) % 3)
    data = ImageData(split, split, 3, shift=2, flip=True)
    shifts, flips = epoch_moves(data, seed=1, epoch=4)
    assert np.abs(shifts).max() == 2 and 0 < flips.sum() < 30
    chosen = np.array([4, 29, 0, 17])
    got = moved(split.images[chosen], shifts[chosen], flips[chosen])
    for image, number in zip(got, chosen, strict=True):
        expected = np.zeros_like(image)
        for y in range(9):
            for x in range(9):
                from_y, from_x = y - shifts[number, 0], x - shifts[number, 1]
                if 0 <= from_y < 9 and 0 <= from_x < 9:
                    expected[:, y, x] = split.images[number, :, from_y, from_x]
        assert np.array_equal(image, expected[:, :, ::-1] if flips[number] else expected)
    still = moved(split.images[chosen], 0 * shifts[chosen], flips[chosen] & False)
    assert np.array_equal(still, split.images[chosen])


def test_digits_are_not_flipped(digits):
    assert not epoch_moves(digits, 0, 0)[1].any()
