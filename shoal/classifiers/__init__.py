"""Image classifiers that are trained through emulated MAC units: models, data, the run and what it shows."""

from typing import TYPE_CHECKING

from shoal.lazy import lazy

if TYPE_CHECKING:
    from shoal.classifiers.config import ClassifierConfig
    from shoal.classifiers.data import load_data
    from shoal.classifiers.images import ImageData
    from shoal.classifiers.models import make_model
    from shoal.classifiers.training import ClassifierResult, train_classifier

__all__ = ["ClassifierConfig", "ClassifierResult", "ImageData", "load_data", "make_model", "train_classifier"]

__getattr__ = lazy(
    "shoal.classifiers",
    {
        "ClassifierConfig": "shoal.classifiers.config",
        "ClassifierResult": "shoal.classifiers.training",
        "ImageData": "shoal.classifiers.images",
        "load_data": "shoal.classifiers.data",
        "make_model": "shoal.classifiers.models",
        "train_classifier": "shoal.classifiers.training",
    },
)
