"""Answers from documents on two sides (DRAGON), from arithmetic to gRPC; see `interface`."""
