"""Engines in the place of models: for tests, simulations and benchmarks."""
