"""Grafana dashboards as code: run `python -m tools.observability` to write deploy/dashboards/.

`grafana` lays panels out, `promql` writes their queries from the metrics that `tandem.telemetry`
declares (a metric or label that is not exported cannot be asked for), the other modules are one
dashboard each. Imports `tandem.telemetry` and the standard library.
"""
