"""Tandem: text generation shared between a small model at the edge and a large one in the cloud."""

__version__ = "0.1.0"
