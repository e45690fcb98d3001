"""Pure mathematics of speculative decoding: distributions, acceptance, Gumbel coupling, codecs.
Values in, values out; randomness arrives as a `RandomSource`. Imports numpy and the standard
library only: no torch, asyncio, grpc or time, and nothing else of `tandem`."""
