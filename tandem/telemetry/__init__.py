"""Metric names (`metrics`), their endpoint, structured logs (`logging`), traces (`tracing`)."""
