"""The settings of a classifier's training: the Python API, the command line and config.json at once."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from shoal.errors import UserError
from shoal.runs.settings import StoredConfig

Optimizer = Literal["sgd", "adam", "adamw"]
RATES: dict[str, float] = {"sgd": 0.1, "adam": 1e-3, "adamw": 1e-3}
DECAYS: dict[str, float] = {"sgd": 1e-4, "adam": 0.0, "adamw": 1e-2}
FLOAT32 = "float32"  # the scheme that others are compared with


def is_float32(scheme: str) -> bool:
    """Whether a scheme is the baseline under any of its names, such as fp32."""
    from shoal.numerics import parse_scheme

    return parse_scheme(scheme) == parse_scheme(FLOAT32)


@dataclass(frozen=True)
class ClassifierConfig(StoredConfig):
    """All settings of a classifier's training."""

    model: Literal["resnet20", "resnet8", "wide-resnet", "vgg", "mlp", "transformer"] = "resnet8"
    """Model: residual networks in their CIFAR form (wide-resnet: 64-128-256 channels), a small VGG, an MLP, or a
    two-layer transformer encoder over image rows."""
    data: str = "digits"
    """Data set: digits, fashion-mnist, fashion-mnist:FOLDER, idx:FOLDER (IDX files) or cifar10:FOLDER (binary)."""
    scheme: str = "E5M2:5+E6M5"
    """Scheme: a MAC unit such as E5M2:5+Q8.13, or float32, bf16, fp16, swalp, s2fp8, hfp8, bm8, fp8-seb, fp134, with
    fields after semicolons (docs/schemes.md)."""
    loss_scale: str = "dynamic"
    """Loss scale: none, a number such as 1024, dynamic or adaptive, with options such as 'dynamic, interval=500'."""
    epochs: int = 5
    """Passes over the training images."""
    batch: int = 64
    """Mini-batch size; the last, incomplete mini-batch of an epoch is dropped."""
    optimizer: Optimizer = "sgd"
    """Optimizer."""
    learning_rate: float | None = None
    """Learning rate at the start; None: 0.1 for sgd, 0.001 for adam and adamw."""
    momentum: float = 0.9
    """Momentum of sgd."""
    weight_decay: float | None = None
    """Weight decay; None: 1e-4 for sgd, 0 for adam, 0.01 for adamw."""
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    """Learning-rate schedule: cosine decay to 0, step (divided by 10 after 50 % and 75 %), or constant."""
    dropout: float = 0.0
    """Dropout of mlp, vgg and transformer."""
    augment: bool = True
    """Random shifts of the training images, and random horizontal flips for Fashion-MNIST and CIFAR-10."""
    train_images: int | None = None
    """Use only this many training images; None: all."""
    test_images: int | None = None
    """Use only this many test images; None: all."""
    seed: int = 0
    """Random seed of initial weights, mini-batches, augmentation and stochastic rounding."""
    baseline: bool = True
    """Also train in float32 with the same seed, in the folder float32/ of the run, and compare."""
    threads: int | None = None
    """CPU threads; None: by the size of a step, at most what the process may use."""
    out: str | None = None
    """Run folder; None: a new one under runs/."""
    log_every: int = 10
    """Steps per line of metrics.jsonl."""
    checkpoint_every: int = 100
    """Steps between checkpoints; 0: only when the run ends or is interrupted."""
    tensorboard: bool = True
    """Write TensorBoard events beside metrics.jsonl."""

    ranges: ClassVar = {
        "epochs": (1, 10**6), "batch": (2, 2**20), "momentum": (0, 0.999), "dropout": (0, 0.9), "seed": (0, 2**62),
        "log_every": (1, None), "checkpoint_every": (0, None), "learning_rate": (1e-12, 1e3), "weight_decay": (0, 1),
        "train_images": (2, None), "test_images": (1, None), "threads": (1, None),
    }  # fmt: skip

    def check(self) -> None:
        """Raise a `UserError` for the first invalid setting; data and scheme are checked further when they are used."""
        from shoal.classifiers.data import check_data_name
        from shoal.numerics import parse_scheme
        from shoal.numerics.schemes.loss_scale import parse_loss_scale

        check_data_name(self.data)
        parse_scheme(self.scheme)
        parse_loss_scale(self.loss_scale)
        super().check()
        if self.out is not None and not self.out.strip():
            raise UserError("`out` is empty, but must be the name of a folder.")
        if self.momentum != type(self).momentum and self.optimizer != "sgd":
            raise UserError(f"`momentum` is for sgd, but `optimizer` is {self.optimizer}.")
        if self.dropout and self.model in ("resnet20", "resnet8", "wide-resnet"):
            raise UserError(f"`dropout` is {self.dropout:g}, but {self.model} has no dropout.")

    @property
    def first_rate(self) -> float:
        """The learning rate at the start."""
        return RATES[self.optimizer] if self.learning_rate is None else self.learning_rate
