"""Tests run side by side, one thread each: small networks gain nothing from more."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
