"""The OpenAI-compatible HTTP API to an aggregator's requests. Invariant: what a caller does wrong
is a 4xx in OpenAI's error format, naming the parameter; a caller who leaves cancels."""
