"""Documents and how they are found: chunking, dense and lexical search, fusion, durable storage.

The only faiss, database and embedding code. `document_index.DocumentIndex` is the whole of it for a
caller; `store.IndexStore` is what a folder (SQLite) and a server (PostgreSQL) implement.
"""
