"""Whole answers in virtual time: real machines, distributions of a pair, sizes of messages."""
