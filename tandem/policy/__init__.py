"""Pure decisions: method presets and analytic cost models.

Values in, values out; every duration is an argument. Must not import asyncio, grpc, torch or time.
Nothing is imported here: take what you need from the module that defines it.
"""
