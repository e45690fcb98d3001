"""The network between edge and cloud, made on purpose: slow, jittery, narrow, cut.

`link_model` is pure and shared by the virtual-time simulator and the TCP emulator, so that both
mean the same link. Nothing is imported here: take what you need from the module that defines it.
"""
