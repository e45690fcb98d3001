"""Bytes of the messages."""
