"""What the tests of classifiers share: a tiny configuration, weights and metrics of a run, IDX and CIFAR files."""

import gzip
import struct

import numpy as np

from shoal.classifiers import ClassifierConfig
from shoal.runs.checkpoint import newest
from tests.cli.helpers import lines

IDX_NAMES = {
    ("train", "images"): "train-images-idx3-ubyte", ("train", "labels"): "train-labels-idx1-ubyte",
    ("test", "images"): "t10k-images-idx3-ubyte", ("test", "labels"): "t10k-labels-idx1-ubyte",
}  # fmt: skip


def tiny(out=None, **settings):
    """Four mini-batches of 16 digits per epoch, for a perceptron."""
    usual = {"model": "mlp", "train_images": 64, "test_images": 40, "batch": 16, "epochs": 2, "loss_scale": "none"}
    usual |= {"log_every": 3, "tensorboard": False, "threads": 1, "out": None if out is None else str(out)}
    return ClassifierConfig(**(usual | settings))


def weights(run):
    """Everything in the newest checkpoint of a run, part by part."""
    return newest(run / "checkpoints", ("weights", "optimizer", "precision", "random")).parts


def assert_same_run(one, other):
    """The same bits in the checkpoints and the same lines in the logs, but for the time."""
    for part, arrays in weights(one).items():
        own = weights(other)[part]
        assert arrays.keys() == own.keys() and arrays
        for name, array in arrays.items():
            assert array.dtype == own[name].dtype and array.tobytes() == own[name].tobytes(), (part, name)
    first, second = ([{**line, "seconds": 0} for line in lines(run)] for run in (one, other))
    assert first == second


def idx(array, kind=0x08, code=">u1"):
    """The bytes of an IDX file."""
    array = np.asarray(array)
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(code).tobytes()


def write_idx(folder, train=40, test=20, side=8, compressed=True, changed=None):
    """A folder with four IDX files of random images; `changed` replaces some of their contents."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for (part, what), name in IDX_NAMES.items():
        count = train if part == "train" else test
        array = rng.integers(0, 256, (count, side, side)) if what == "images" else np.arange(count) % 3
        content = (changed or {}).get((part, what), idx(array))
        if compressed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return folder


def write_cifar(folder, records):
    """CIFAR-10's six files with this many random records each."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        content = rng.integers(0, 256, (records, 3073)).astype(np.uint8)
        content[:, 0] %= 10
        (folder / name).write_bytes(content.tobytes())
    return folder
