"""What Grafana is told in compose: where Prometheus is, how often it scrapes, where panels lie."""

from __future__ import annotations

from typing import Any

import yaml

from tests.programs import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())["services"]
MOUNTS = {
    place: (DEPLOY / folder).resolve()
    for folder, place, *_ in (volume.split(":") for volume in COMPOSE["grafana"]["volumes"])
    if folder.startswith(".")
}


def provisioned(path: str) -> dict[str, Any]:
    """A file where Grafana looks for it, in its container."""
    folder = MOUNTS["/etc/grafana/provisioning"]
    assert folder == DEPLOY / "grafana" / "provisioning"
    content: dict[str, Any] = yaml.safe_load((folder / path).read_text())
    assert content["apiVersion"] == 1
    return content


def test_the_datasource_is_the_composed_prometheus_at_the_interval_it_scrapes() -> None:
    (source,) = provisioned("datasources/prometheus.yml")["datasources"]
    host, _, port = source["url"].removeprefix("http://").partition(":")
    assert host in COMPOSE
    assert any(published.endswith(f":{port}") for published in COMPOSE[host]["ports"])
    assert set(COMPOSE[host]["networks"]) & set(COMPOSE["grafana"]["networks"])
    scraping = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["global"]
    assert source["jsonData"]["timeInterval"] == scraping["scrape_interval"]


def test_dashboards_are_looked_for_where_they_are_mounted() -> None:
    (provider,) = provisioned("dashboards/tandem.yml")["providers"]
    assert MOUNTS[provider["options"]["path"]] == DEPLOY / "dashboards"
