"""One engine that a service's sessions share: its thread, what they may take of it, what is kept of
them, and its metrics. Invariant: sessions and what is kept stay within one budget of memory."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tandem.backends.interface import Engine
from tandem.net.admission import SESSIONS, Admission
from tandem.net.quotas import Quota
from tandem.net.stream_limits import StreamLimits
from tandem.runtime.engine_thread import EngineThread
from tandem.runtime.pass_times import PassTimes
from tandem.runtime.prefix_cache import PrefixCache, PrefixLimits
from tandem.runtime.watchdog import STUCK_AFTER_S
from tandem.telemetry.metrics import Metrics

OnPass = Callable[[float, int, int], None]


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits of a service with an engine."""

    max_sessions: int = 32
    kv_budget_bytes: int = 2**30
    stuck_after_s: float = STUCK_AFTER_S
    streams: StreamLimits = field(default_factory=StreamLimits)
    quota: Quota = field(default_factory=Quota)
    prefixes: PrefixLimits = field(default_factory=PrefixLimits)


class ServedEngine:
    """`on_pass(seconds, jobs, tokens)` is called on the engine's thread, which has this `name`."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        limits: EngineLimits,
        metrics: Metrics,
        on_pass: OnPass | None = None,
        pass_times: PassTimes | None = None,
    ) -> None:
        self.series = series = metrics.engine(engine.model_name)

        def passed(pass_s: float, jobs: int, tokens: int) -> None:
            series.passed(pass_s, jobs, tokens)
            if on_pass is not None:
                on_pass(pass_s, jobs, tokens)

        self.admission = admission = Admission(
            {SESSIONS: limits.max_sessions},
            kv_budget_bytes=limits.kv_budget_bytes,
            quota=limits.quota,
            series=metrics.holders(),
        )
        self.thread = thread = EngineThread(
            engine, name, passed, limits.stuck_after_s, pass_times=pass_times
        )
        self.prefixes = PrefixCache(
            thread, limits.prefixes, lambda: admission.kv_free_bytes, series
        )
        admission.on_change = self.prefixes.make_room
        series.engine_working.set_function(lambda: not thread.fault)
        series.kv_budget_bytes.set(limits.kv_budget_bytes)
        series.sessions_open.set_function(lambda: admission.sessions)
        series.kv_bytes.set_function(lambda: admission.kv_bytes)
        series.queue_depth.set_function(lambda: thread.waiting)
