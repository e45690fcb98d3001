"""`python -P -m tandem.testing.verifier`: the verifier of tests and benchmarks."""
