"""Pure mathematics of speculative decoding: laws, acceptance, shared noise, codecs.

Values in, values out; randomness arrives as a `Chance`. Imports numpy and the standard library
only: no torch, asyncio, grpc or time, and nothing else of `tandem`.
"""
