"""Sans-IO state machines of the edge–cloud conversation.

Values in, values out; time comes in as `now`. Must not import asyncio, grpc, torch or time.
"""
