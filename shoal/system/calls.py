"""Functions called in child processes: their memory is returned, and one that takes too much ends only its own process.

A function is named by its module, and its arguments and result are JSON values.
"""

import importlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any

from shoal.system.child import INTERRUPTED, Channel, Child, Ended, Message, serve
from shoal.system.processes import prepare

REMEDY = "end other programs first"


def call_in_child(
    function: Callable[..., Any],
    *arguments: Any,
    advance: Callable[..., None] | None = None,
    threads: int | None = 1,
    environment: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> Any:
    """What the function returns, called in a fresh process; faults are those of `Child.receive`.

    Args:
        function: A function of a module, by its own name.
        arguments: JSON values.
        advance: If given, the function is called with a last argument: whatever that is called with, this is.
        threads, environment: As of `Child`.
        timeout: Seconds after which it counts as failed: `TimeoutError`.
    """
    child = Child("shoal.system.calls", {}, REMEDY, threads=threads, environment=environment)
    try:
        return _call(child, function, arguments, advance, timeout)
    finally:
        child.kill()


class ChildPool:
    """Calls functions in child processes of one thread, some at a time; a child serves one call after another."""

    def __init__(self, workers: int) -> None:
        self._threads = ThreadPoolExecutor(workers, "calls")
        self._idle: SimpleQueue[Child] = SimpleQueue()
        self._busy: list[Child] = []
        self._killed = False

    def __enter__(self) -> "ChildPool":
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        while not self._idle.empty():
            self._idle.get().kill()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a function of a module with JSON values, as soon as a child is idle."""
        return self._threads.submit(self._call, function, arguments)

    def kill(self) -> None:
        """End all calls now."""
        self._killed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for child in [*self._busy]:
            child.process.kill()

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        try:
            child = self._idle.get_nowait()
        except Empty:
            child = Child("shoal.system.calls", {}, REMEDY)
        self._busy.append(child)
        try:
            if self._killed:  # while this child was being started
                child.process.kill()
            result = _call(child, function, arguments)
        except BaseException:
            child.kill()
            raise
        finally:
            self._busy.remove(child)
        self._idle.put(child)
        return result


def _call(
    child: Child,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    advance: Callable[..., None] | None = None,
    timeout: float | None = None,
) -> Any:
    name = [function.__module__, function.__qualname__]
    try:
        child.channel.send({"function": name, "arguments": arguments, "advance": advance is not None})
        while True:
            message, _ = child.receive(timeout)
            if "result" in message:
                return message["result"]
            assert advance is not None
            advance(*message["advance"])
    except BrokenPipeError:
        raise Ended(child.process.wait()) from None
    except Ended as error:
        if error.code == INTERRUPTED:
            raise KeyboardInterrupt from None
        raise


def run(spec: Message, parent: Channel) -> None:
    """In the child: call what is asked for until the parent is gone."""
    prepare()
    while (received := parent.receive()) is not None:
        (module, name), arguments = received[0]["function"], received[0]["arguments"]
        function = getattr(importlib.import_module(module), name)
        if received[0]["advance"]:
            arguments.append(lambda *progress: parent.send({"advance": progress}))
        parent.send({"result": function(*arguments)})


if __name__ == "__main__":
    serve(run)
