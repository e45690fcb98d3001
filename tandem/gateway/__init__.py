"""The OpenAI-compatible HTTP API: another door to the requests of an aggregator.

Invariant: what a caller does wrong is a 4xx in OpenAI's error format, naming the parameter; a
caller who leaves cancels. Must not import grpc, torch or the services.
"""
