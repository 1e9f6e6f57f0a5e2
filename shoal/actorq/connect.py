"""Connecting to Ray: a cluster at an address, or one that is started on this machine; what is checked of its nodes."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

from shoal import __version__
from shoal.actorq.remote import source_digest
from shoal.errors import ActorsLost, UserError, counted

ANSWER = 5.0  # seconds in which something must answer at an address
CHECK = 60.0  # seconds in which every node must say which Shoal it has
LOOPBACK = ("127.0.0.1", "::1")
VITAL = ("raylet", "gcs_server")  # processes without which Ray cannot work


def import_ray() -> Any:
    """Ray, with its usage reports off, and with nothing of its nodes' messages on the screen."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns about its own plans
    os.environ.setdefault("RAY_gcs_server_request_timeout_seconds", "20")  # not a minute, if no node is here
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")  # each line that it would print
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise UserError(f"`cluster` needs Ray ({error}): pip install -c constraints.txt -e '.[cluster]'.") from None
    return ray


def check_answers(address: str) -> None:
    """Refuse an address at which nothing answers as a Ray cluster does; Ray itself would try for minutes."""
    import grpc

    if os.environ.get("RAY_USE_TLS", "0") != "0":
        return
    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=ANSWER)
        except grpc.FutureTimeoutError:
            raise UserError(
                f"`cluster` is {address}, but no Ray cluster answers there; `ray start --head` prints its address."
            ) from None


def check_nodes(ray: Any) -> None:
    """Refuse a cluster with a node that has no Shoal, or another one than the learner's."""

    def source() -> tuple[str, str]:  # inside a function: Ray sends its code, which a node without Shoal can run, too
        try:
            import shoal
            from shoal.actorq.remote import source_digest as digest

            return shoal.__version__, digest()
        except ImportError as error:
            return "", str(error)

    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    task = ray.remote(num_cpus=0, max_retries=0)(source)
    begun, checked = time.monotonic(), set[str]()
    while nodes := [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in checked]:
        calls = [task.options(scheduling_strategy=affinity(node["NodeID"], soft=False)).remote() for node in nodes]
        ready = ray.wait(calls, num_returns=len(calls), timeout=CHECK)[0]
        for node, answer in zip(nodes, calls, strict=True):
            name = f"The node {node['NodeManagerAddress']}"
            if answer not in ready:
                raise UserError(f"{name} of the cluster does not answer.")
            try:
                check_same(name, *ray.get(answer))
                checked.add(node["NodeID"])
            except ray.exceptions.RayError as error:  # it has only just joined, or it is leaving
                if time.monotonic() - begun > CHECK:
                    raise UserError(f"{name} of the cluster cannot be used: {in_a_line(error)}.") from None
                time.sleep(0.2)


def check_same(name: str, version: str, digest: str) -> None:
    """Refuse a node without Shoal (no version, and why), or with another one than the learner's."""
    if not version:
        raise UserError(f"{name} has no Shoal ({digest}); install the learner's version, {__version__}, there.")
    if (version, digest) != (__version__, source_digest()):
        other = f"Shoal {version}" if version != __version__ else f"another Shoal {version} (its source differs)"
        raise UserError(f"{name} has {other}, but the learner {__version__}; install the same on each node.")


def check_cpus(ray: Any, actors: int) -> None:
    """Refuse more actors than the cluster has CPUs."""
    have = int(ray.cluster_resources().get("CPU", 0))
    if have < actors:
        raise UserError(f"`actors` is {actors}, but the cluster has {counted(have, 'CPU')}: each actor takes one.")


def connect(ray: Any, address: str, settings: dict[str, Any]) -> None:
    """Connect to a cluster; "local" starts one on this machine with these settings."""
    if local := address == "local":
        settings, wrong = {"num_gpus": 0, "include_dashboard": False, **settings}, "Ray cannot be started here"
    else:
        check_answers(address)
        wrong = (
            f"`cluster={address}` cannot be used from here; this machine must be a node of it, with the same versions "
            "of Ray and Python"
        )
    try:
        with own_signals(), loopback(ray) if local else contextlib.nullcontext():
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, **settings)
    except Exception as error:
        raise UserError(f"{wrong}: {in_a_line(error)}.") from None
    if local and ray.util.get_node_ip_address() not in LOOPBACK:
        raise UserError(
            f"Ray {ray.__version__} would listen on all network interfaces; install the version in constraints.txt, or "
            "start Ray yourself and give `cluster` its address."
        )


def check_running(ray: Any) -> None:
    """Raise if a part of the Ray that this process started is gone: Ray would end this process without a word."""
    for part, _ in ray._private.worker._global_node.dead_processes():
        if part in VITAL:
            raise ActorsLost(
                f"Ray's {part} on this machine has died, perhaps because memory ran out; `resume` continues from the "
                "last checkpoint."
            )


@contextlib.contextmanager
def told_if_gone() -> Iterator[None]:
    """Report a Ray that does not answer any more, before `check_running` finds it dead."""
    try:
        yield
    except OSError as error:
        raise ActorsLost(f"Ray has gone ({in_a_line(error)}); `resume` continues from the last checkpoint.") from None


@contextlib.contextmanager
def loopback(ray: Any) -> Iterator[None]:
    """Let a Ray that is started meanwhile listen on 127.0.0.1 only.

    On Linux it takes the machine's address even if another is given, and then listens on all network interfaces. On
    systems for which it has no clusters it takes 127.0.0.1: that is what this makes it believe.
    """
    constants = ray._private.ray_constants
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def in_a_line(error: Exception) -> str:
    """The first words of a long message."""
    text = " ".join(str(error).split())
    return (text if len(text) <= 200 else f"{text[:200]} …").rstrip(".")


@contextlib.contextmanager
def own_signals() -> Iterator[None]:
    """Keep this program's answers to signals; Ray would put its own in their place."""
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
