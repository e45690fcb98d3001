"""Routing (pure): which of several services a session uses, and when it moves."""
