"""A service as a process: flags, settings, logs, metrics endpoint, event loop, exit code."""

import asyncio
import atexit
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    contextmanager,
    suppress,
)
from functools import partial
from typing import Any, NoReturn, TypeVar

from tandem.core.errors import InvalidArgument, TandemError, listen_words, os_words
from tandem.core.extras import missing_package
from tandem.net.access import ServerAccess, server_access
from tandem.net.lifecycle import (
    PortInUse,
    RunningService,
    Service,
    raise_descriptor_limit,
    stop_signal,
)
from tandem.settings import (
    MeasuredSettings,
    ServiceSettings,
    SettingsError,
    load_settings,
    parse_flags,
    variable_of,
)
from tandem.telemetry.endpoint import MetricsServer, serve_metrics
from tandem.telemetry.logging import configure_logging
from tandem.telemetry.metrics import LoopSeries, Metrics, Side, new_registry
from tandem.telemetry.prometheus_server import PrometheusServer, labels_of

Settings = TypeVar("Settings", bound=ServiceSettings)
Beside = Callable[[Any, Metrics, Any], AbstractAsyncContextManager[str]]
"""From settings, metrics and the running service to another door to it; its line of output."""

USAGE_EXIT = 2
LAG_EVERY_S = 0.1
SWITCH_S = 0.0005
"""After which a thread that computes in Python lets another have the interpreter: the event loop
and the engine's thread need it many times for each token, and would wait 5 ms each time."""

FULL_COLLECTION_EVERY = 50
"""Younger collections between two full ones, at least; 10 by default. One tenant's long bodies are
a hundred thousand objects while they are read, and everybody waits while all are looked at."""


def run_service(
    model: type[Settings],
    build: Callable[[Settings, Metrics], Service],
    side: Side | Callable[[Settings], Side],
    arguments: Sequence[str] | None = None,
    beside: Beside | None = None,
) -> None:
    """Run until a signal, then exit: 0 drained, 1 could not start, 2 bad settings, 130 interrupted.
    Writes `listening HOST:PORT` to standard output once calls are served, and after it what
    `beside` says of the door that it opens for as long as the service runs."""
    try:
        words = sys.argv[1:] if arguments is None else arguments
        settings = load_settings(model, parse_flags(model, words))
        access = server_access(settings)
    except SettingsError as error:
        sys.exit(_complain(error, USAGE_EXIT))
    configure_logging(settings.log_level)
    sys.setswitchinterval(SWITCH_S)
    # In the end nothing is left to collect but what the kernel frees anyway: torch's modules alone
    # keep the interpreter busy for a second of computing, which a machine under load makes many.
    atexit.register(gc.freeze)
    raise_descriptor_limit()
    for number in (signal.SIGINT, signal.SIGTERM):  # until calls are served: loading may be long
        signal.signal(number, _leave)
    try:
        _run(
            settings,
            build,
            side=side(settings) if callable(side) else side,
            access=access,
            beside=beside,
        )
    except SettingsError as error:
        sys.exit(_complain(error, USAGE_EXIT))
    except TandemError as error:
        sys.exit(_complain(error, 1))
    except ModuleNotFoundError as error:
        sys.exit(_complain(missing_package(error), 1))
    except OSError as error:
        sys.exit(_complain(os_words(error), 1))


def prometheus_server(settings: MeasuredSettings) -> PrometheusServer | None:
    """Return the one that is named, not asked yet. Raises SettingsError for one that cannot be
    asked."""
    if not settings.prometheus:
        return None
    try:
        return PrometheusServer(settings.prometheus, labels_of(settings.prometheus_labels))
    except InvalidArgument as error:
        raise SettingsError(f"{variable_of(error.field)}: {error.why}") from None


def _leave(signal_number: int, frame: object) -> NoReturn:
    """Leave at once. The kernel ends a process of its own accord, but not the first of a container;
    and asyncio answers Ctrl-C once the model is loaded."""
    if signal_number == signal.SIGINT:
        os.write(2, b"interrupted\n")
    os._exit(128 + signal_number)


def _run(
    settings: Settings,
    build: Callable[[Settings, Metrics], Service],
    *,
    side: Side,
    access: ServerAccess,
    beside: Beside | None,
) -> None:
    metrics = Metrics(new_registry(), side)
    if access.identity is not None:
        metrics.access().certificate_valid.set_function(access.identity.valid_for_s)
    if access.keys is not None:
        metrics.access().follow_keys_file("keys_file", access.keys.state)
    with ExitStack() as stack:
        if settings.metrics_port:
            stack.enter_context(_metrics_endpoint(settings, metrics))
        opened = None if beside is None else partial(_opened, beside, settings, metrics)
        serving = _serve(
            settings,
            lambda: build(settings, metrics),
            access=access,
            beside=opened,
            loop_series=metrics.loop(),
        )
        run_loop(serving)


def _opened(
    beside: Beside, settings: Settings, metrics: Metrics, service: Any, port: int
) -> AbstractAsyncContextManager[str]:
    """Return the door beside a service that listens on `port`, which may have been 0 before."""
    return beside(settings.model_copy(update={"port": port}), metrics, service)


def _metrics_endpoint(settings: ServiceSettings, metrics: Metrics) -> MetricsServer:
    host = settings.metrics_host
    port = settings.metrics_port
    try:
        return serve_metrics(metrics.registry, host, port)
    except OSError as error:
        raise PortInUse(f"{listen_words(error, host, port)} (metrics)") from error


async def _serve(
    settings: ServiceSettings,
    build: Callable[[], Service],
    *,
    access: ServerAccess,
    beside: Callable[[Any, int], AbstractAsyncContextManager[str]] | None,
    loop_series: LoopSeries,
) -> None:
    with nothing_collected():
        service = build()  # inside the loop: channels belong to the loop they are made in
    _keep_for_good()
    running = RunningService(
        service,
        settings.host,
        settings.port,
        max_message_bytes=settings.max_message_bytes,
        access=access,
        health_port=settings.health_port or None,
    )
    await running.start()
    watching = asyncio.create_task(watch_event_loop(loop_series))  # not of loading a model
    stop = stop_signal()  # before the line that says that this process may be signalled
    async with AsyncExitStack() as stack:  # a door beside it stays open while it drains
        lines = [f"listening {running.target}"]
        try:
            if beside is not None:
                line = await stack.enter_async_context(beside(service, running.port))
                lines += [line] if line else []
        except BaseException:
            await running.drain(0.0)
            raise
        print("\n".join(lines), flush=True)
        await stop.wait()
        await running.drain(settings.drain_s)
    watching.cancel()


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Turn off the garbage collector while models are loaded, which stay: it would look through the
    half a million objects of torch and transformers again and again as they come, and take a
    seventh of the time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _keep_for_good() -> None:
    """Take what has been loaded out of the garbage collector's sight. It looks at everything only
    once what is new has come to a quarter of all, and torch's modules alone are half a million
    objects: the cycles of thousands of calls would wait for it, and every call for its pass."""
    gc.collect()
    return_freed_memory()
    gc.freeze()
    gc.collect()  # nothing; but only a full collection counts anew what "all" is
    gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTION_EVERY)


def return_freed_memory() -> None:
    """Give the system back what loading allocated and freed: glibc keeps it for later. Elsewhere
    this does nothing."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


async def watch_event_loop(series: LoopSeries, every_s: float = LAG_EVERY_S) -> NoReturn:
    """Measure how late the event loop is, until this is cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + every_s
        await asyncio.sleep(every_s)
        series.lag.observe(max(0.0, loop.time() - due_s))


def run_loop(main: Any) -> Any:
    """Run a coroutine as `asyncio.run` does, on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def _complain(error: Exception | str, exit_code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return exit_code
