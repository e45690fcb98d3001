"""Documents and how they are found: chunking, dense and lexical search, fusion, durable storage.

The only faiss and embedding code. `document_index.DocumentIndex` is the whole of it for a caller.
Must not import grpc or the engine.
"""
