"""`python -P -m tandem.testing.drafter`: the drafter of tests and benchmarks."""
