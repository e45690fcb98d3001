"""By which names the deployed HTTP API may be called: its own, and no web page's."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tandem.core.host_names import ANY
from tandem.gateway.errors import ApiError
from tandem.gateway.known_names import KnownNames
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.http import known_names
from tests.deploy_static.chart import RELEASE, environment
from tests.deploy_static.test_chart_reach import set_values
from tests.deploy_static.test_compose import environment as composed

NAME = f"{RELEASE}-tandem-edge-aggregator"
SERVICE = {NAME, f"{NAME}.default", f"{NAME}.default.svc"}


def names_of(given: Mapping[str, str]) -> KnownNames:
    told = {"http_hosts", "http_origins", "http_host", "http_keys_file"}
    read = {
        name: given[f"TANDEM_{name.upper()}"] for name in told if f"TANDEM_{name.upper()}" in given
    }
    return known_names(AggregatorSettings.model_validate(read))


def chart_names(values: str, *more: str) -> KnownNames:
    """Of the edge aggregator, as helm renders it."""
    for manifest in set_values(values, *more):
        if manifest["kind"] == "Deployment" and manifest["metadata"]["name"] == NAME:
            return names_of(environment(manifest))
    raise AssertionError("no edge aggregator")


def known(names: KnownNames, hosts: set[str]) -> set[str]:
    found = set()
    for host in hosts:
        try:
            names.check({"host": f"{host}:8000"})
        except ApiError:
            continue
        found.add(host)
    return found


def test_without_keys_the_chart_s_own_names_are_known_and_no_other() -> None:
    names = chart_names("insecure")
    assert known(names, {*SERVICE, "localhost", "evil.example"}) == {*SERVICE, "localhost"}
    more = ("edgeAggregator.ingress.enabled=true", "edgeAggregator.ingress.host=a.example.com")
    names = chart_names("insecure", *more, "edgeAggregator.hosts={b.example.com}")
    wanted = {*SERVICE, "a.example.com", "b.example.com"}
    assert known(names, {*wanted, "evil.example"}) == wanted
    external = chart_names("insecure", "edgeAggregator.external.enabled=true")
    assert known(external, {f"{NAME}-external.default"})


@pytest.mark.parametrize("values", ["edge", "tls"])
def test_with_keys_any_name_will_do_unless_some_are_given(values: str) -> None:
    assert ANY in chart_names(values).hosts
    names = chart_names(values, "edgeAggregator.hosts={b.example.com}")
    assert known(names, {*SERVICE, "b.example.com", "evil.example"}) == {*SERVICE, "b.example.com"}


def test_compose_knows_its_service_s_name_and_this_machine() -> None:
    names = names_of(
        {
            variable: value.partition("-")[2].rstrip("}") if value.startswith("${") else value
            for variable, value in composed("edge-aggregator").items()
        }
    )
    wanted = {"localhost", "127.0.0.1", "edge-aggregator"}
    assert known(names, {*wanted, "evil.example"}) == wanted
