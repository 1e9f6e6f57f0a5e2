"""A process that calls some compiled functions, in an order of its own, and checks what they return.

Told on the command line which functions to call; begins when its standard input ends, so that several begin at once;
prints how many functions it has compiled and how many it has loaded.
"""

import json
import sys

import numpy as np
from numba import prange, types

from shoal.actorq.versions import checksum, copy_checked
from shoal.commands.console import warnings_as_sentences
from shoal.compiled import cfunc, njit
from shoal.replay.half import narrow_float16, widen_float16

CONSTANTS = range(6)
X = np.arange(1, 60, dtype=np.int64)


@njit(cache=True)
def mixed(x, constant):
    """Too long to be inlined, and with a path that raises."""
    total = 0
    for i in range(x):
        total += (i ^ constant) % 7
        if total > 1 << 40:
            raise ValueError("too large")
    return total


def make_callback(constant):
    @cfunc(types.int64(types.int64))
    def callback(x):
        return mixed(x, constant) * 1000 + constant

    return callback.ctypes, callback.__wrapped__, callback


def make_function(constant):
    @njit(cache=True, nogil=True)
    def function(x):
        return mixed(x, constant) + mixed(x + 1, constant) * constant

    return function, function.py_func, function


def make_loop(constant):
    @njit(cache=True, error_model="numpy")
    def loop(x):
        total = 0
        for i in range(len(x)):
            total += mixed(x[i], constant)
        return total

    return loop, loop.py_func, loop


MAKERS = {"callback": (make_callback, 17), "function": (make_function, 17), "loop": (make_loop, X)}
NAMES = [f"{kind} {constant}" for kind in MAKERS for constant in CONSTANTS] + ["checksum", "half", "parallel"]


@njit(cache=True, parallel=True)
def parallel(x):
    total = 0
    for i in prange(len(x)):
        total += x[i] * x[i]
    return total


def call(name):
    """Check a function; the dispatchers that it took."""
    if name == "checksum":
        words = X.view(np.uint64)
        assert copy_checked(words, np.empty_like(words)) == checksum(words)
        return [copy_checked, checksum]
    if name == "half":
        for number in (0.1, -3.0, 65519.0, 1e-7):
            code = narrow_float16(np.float32(number))
            assert np.float16(number).view(np.uint16) == code and widen_float16(np.uint16(code)) == np.float16(number)
        return [narrow_float16, widen_float16]
    if name == "parallel":
        assert parallel(X) == (X * X).sum()
        return [parallel]
    kind, constant = name.split()
    make, argument = MAKERS[kind]
    compiled, plain, made = make(int(constant))
    assert compiled(argument) == plain(argument), f"{name} returns {compiled(argument)}"
    return [made, mixed]


def main():
    sys.stdin.read()
    with warnings_as_sentences():
        held = [made for name in sys.argv[1:] for made in call(name)]
    loaded = compiled = 0
    for made in {id(made): made for made in held}.values():
        if hasattr(made, "stats"):
            loaded, compiled = loaded + made.stats.cache_hits.total(), compiled + made.stats.cache_misses.total()
        else:
            loaded, compiled = loaded + made.cache_hits, compiled + 1 - made.cache_hits
    print(json.dumps({"loaded": loaded, "compiled": compiled}))


if __name__ == "__main__":
    main()
