"""Routing (pure): which of several services a session uses, when it moves, and when it asks a
second one."""
