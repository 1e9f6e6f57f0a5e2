"""The path of `convert` before version 0.2; see `shoal.policies.normaliser`."""

from shoal.lazy import lazy

__getattr__ = lazy(__name__, {"convert": "shoal.policies.normaliser"})
