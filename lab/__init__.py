"""The laboratory: measures, simulates, plans and trains. It uses `tandem`, which never imports it.

A distribution of its own (`lab/pyproject.toml`), whose entry points add commands to `tandem`.
"""
