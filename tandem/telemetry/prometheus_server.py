"""A Prometheus server that is asked in the background for what all services of the suite measured:
the recording rules of `deploy/prometheus/rules`. Reading never waits and never fails: a server that
is gone, slow or talks nonsense knows nothing until it answers again. One small question every few
seconds needs no client library."""

import asyncio
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from tandem.core.errors import InvalidArgument
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

PERIOD_S = 10.0
TIMEOUT_S = 2.0
MAX_ANSWER_BYTES = 2**20

ACCEPTANCE = "pair:tandem_acceptance:ratio_rate15m"
SIDE_ACCEPTANCE = "side:tandem_acceptance:ratio_rate15m"
DRAFT_STEP = "instance:tandem_draft_step_seconds:mean_rate15m"
VERIFY_STEP = "instance:tandem_verify_step_seconds:mean_rate15m"
ROUND_TRIP = "instance:tandem_round_trip_seconds:mean_rate15m"
QUEUE = "instance:tandem_queue_seconds:mean_rate1m"
RULES = (ACCEPTANCE, SIDE_ACCEPTANCE, DRAFT_STEP, VERIFY_STEP, ROUND_TRIP, QUEUE)
"""The recording rules that are read."""

_LABEL = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*([^\s",=\\]+)\s*')


def window_s(rule: str) -> float:
    """Return the span in seconds that a rule's number is a mean over, as its name says."""
    return 60.0 * float(rule.rpartition("rate")[2].removesuffix("m"))


def labels_of(text: str) -> dict[str, str]:
    """Parse labels like "suite=tandem,release=prod". Raises
    InvalidArgument("prometheus_labels")."""
    labels = {}
    for part in filter(str.strip, text.split(",")):
        if (match := _LABEL.fullmatch(part)) is None:
            raise InvalidArgument("prometheus_labels", f"{part!r} is not LABEL=VALUE")
        labels[match[1]] = match[2]
    return labels


@dataclass(frozen=True, slots=True)
class Sample:
    """One number of a rule, by its labels."""

    rule: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Aged:
    """A number, and how long ago it was measured."""

    value: float
    age_s: float


def mean_of(
    samples: Sequence[Sample],
    rule: str,
    labels: Mapping[str, str],
    preferred: Mapping[str, str] | None = None,
) -> Aged | None:
    """Return the mean of a rule's samples with these labels, of those with the `preferred` ones
    where there are any. It is as old as the middle of what the rule looks back on. A label wanted
    as "" may be any, but then the same one everywhere: what differs is not averaged."""
    matching = [sample for sample in samples if sample.rule == rule and _agrees(sample, labels)]
    for name in (name for name, value in labels.items() if not value):
        if len({sample.labels.get(name) for sample in matching}) > 1:
            return None
    closer = [
        sample for sample in matching if preferred and sample.labels.items() >= preferred.items()
    ]
    values = [sample.value for sample in closer or matching]
    return Aged(fmean(values), window_s(rule) / 2) if values else None


@dataclass(frozen=True, slots=True)
class PairReading:
    """What all processes measured of a draft model at a target; None where nobody did."""

    acceptance: Aged | None
    draft_step_s: Aged | None
    verify_step_s: Aged | None
    round_trip_s: Aged | None


def read_pair(
    samples: Sequence[Sample], *, engine: str, target: str, preset: str, instance: str
) -> PairReading:
    """Return what is known of the draft model `engine` at `target`. Acceptance is of `preset`;
    draft steps and round trips are of the process `instance`, where there are any of it."""
    at_target = {"model_name": target}
    here = {"instance": instance}
    pair = {"engine": engine, "preset": preset, **at_target}
    return PairReading(
        acceptance=mean_of(samples, ACCEPTANCE, pair),
        draft_step_s=mean_of(samples, DRAFT_STEP, {"engine": engine, "side": "device"}, here),
        verify_step_s=mean_of(samples, VERIFY_STEP, at_target),
        round_trip_s=mean_of(samples, ROUND_TRIP, at_target, here),
    )


def _agrees(sample: Sample, labels: Mapping[str, str]) -> bool:
    return all(sample.labels.get(name) == value for name, value in labels.items() if value)


class PrometheusServer:
    """The server at `address` (http://prometheus:9090; a path before `/api` is kept), of which only
    series with these `labels` count. Raises InvalidArgument for another scheme."""

    def __init__(
        self,
        address: str,
        labels: Mapping[str, str],
        period_s: float = PERIOD_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).netloc:
            raise InvalidArgument("prometheus", f"{address!r} is not an http or https address")
        self._api = address.rstrip("/") + "/api/v1/"
        matchers = "".join(f',{name}="{value}"' for name, value in labels.items())
        self._query = f'{{__name__=~"{"|".join(RULES)}"{matchers}}}'
        self._period_s = period_s
        self._timeout_s = timeout_s
        self._samples: tuple[Sample, ...] = ()
        self._reached: bool | None = None
        self._rules_looked_for = False
        self._asking: asyncio.Task[None] | None = None

    def read(self) -> Sequence[Sample]:
        """Return what was answered last; nothing while the server is lost."""
        return self._samples

    def start(self) -> None:
        """Ask in the background from now on; needs a running event loop."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            with suppress(asyncio.CancelledError):
                await self._asking

    async def _run(self) -> None:
        while True:
            await self.refresh()
            await asyncio.sleep(self._period_s)

    async def refresh(self) -> bool:
        """Query once; return whether the server answered. Nothing is raised if it does not."""
        try:
            rows = (await self._get("query", query=self._query))["result"]
            samples = (_sample(row["metric"], row["value"][1]) for row in rows)
            self._samples = tuple(sample for sample in samples if sample is not None)
            if not rows and not self._rules_looked_for:
                await self._look_for_rules()
        except Exception as error:  # whatever it says or fails with
            self._samples = ()
            self._report(False, str(error) or type(error).__name__)
            return False
        self._report(True)
        return True

    async def _look_for_rules(self) -> None:
        """Look for the rules, as there are no numbers: nothing happened yet, or nobody loaded the
        rules, which is logged once."""
        groups = (await self._get("rules", type="record"))["groups"]
        self._rules_looked_for = True
        recorded = {rule["name"] for group in groups for rule in group["rules"]}
        if missing := [rule for rule in RULES if rule not in recorded]:
            log.warning(
                "metrics server lacks recording rules; load deploy/prometheus/rules",
                address=self._api,
                missing=", ".join(missing),
            )

    async def _get(self, what: str, **parameters: str) -> Any:
        url = f"{self._api}{what}?{urlencode(parameters)}"
        async with asyncio.timeout(self._timeout_s):  # urlopen's own is for each piece of an answer
            answer = await asyncio.to_thread(_get_json, url, self._timeout_s)
        if answer["status"] != "success":
            raise ValueError(f"answered {answer.get('error', answer['status'])}")
        return answer["data"]

    def _report(self, reached: bool, why: str = "") -> None:
        """Log a line when the server is lost and one when it is back, not one every time."""
        if reached and not self._reached:
            log.info("metrics server answers", address=self._api)
        elif not reached and self._reached is not False:
            log.warning("metrics server lost; continuing without it", address=self._api, why=why)
        self._reached = reached


def _get_json(url: str, timeout_s: float) -> Any:
    with urlopen(Request(url, headers={"Accept": "application/json"}), timeout=timeout_s) as answer:
        content = answer.read(MAX_ANSWER_BYTES + 1)
    if len(content) > MAX_ANSWER_BYTES:
        raise ValueError(f"more than {MAX_ANSWER_BYTES} bytes")
    return json.loads(content)


def _sample(labels: dict[str, str], text: str) -> Sample | None:
    """Return the value if it can have been measured, else None: input from outside must not decide
    anything wrongly."""
    rule = labels.pop("__name__")
    value = float(text)
    if rule not in RULES or not math.isfinite(value) or value < 0:
        return None
    if rule in (ACCEPTANCE, SIDE_ACCEPTANCE) and value > 1:
        return None
    return Sample(rule, labels, value)
