"""Grafana dashboards as code: run `python -m tools.observability` to write deploy/dashboards/.

`grafana` lays panels out; `promql` writes their queries from the metrics that `tandem.telemetry`
declares, so that a metric or label that is not exported is an error; the other modules are one
dashboard each.
"""
