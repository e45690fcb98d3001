"""The papers' cost models and tables, and the cost of any preset. Pure; no service uses it."""
