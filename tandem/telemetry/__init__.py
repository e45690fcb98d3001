"""Metric names and the metrics endpoint (`metrics`), structured logs (`logging`).

Imports prometheus-client and the standard library; nothing else of Tandem.
"""
