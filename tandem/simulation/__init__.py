"""Whole answers in virtual time: real machines, laws of a real pair, sizes of real messages.

Above `netem`, `engine` and `rpc`, which know nothing of each other. Nothing is imported here: take
what you need from the module that defines it.
"""
