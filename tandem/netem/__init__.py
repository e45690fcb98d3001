"""The network between edge and cloud, emulated: slow, jittery, narrow, cut. `link_model` is pure
and shared by the virtual-time simulator and the TCP emulator, so that both mean the same link."""
