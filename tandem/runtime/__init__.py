"""The engine thread and the jobs that run on it."""
