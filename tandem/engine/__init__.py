"""Language models behind one interface: `base` says what an engine is.

Nothing is imported here, so that `base` and `scripted` stay usable where torch is not installed.
"""
