"""The commands of the command line, one module each, and what they share.

Same layer as `tandem.cli`: may import everything, the services too. Must not import torch but
through the engine, when a model is really needed.
"""
