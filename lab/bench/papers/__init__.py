"""The five papers' tables and figures, ours beside theirs, made of experiments and models."""
