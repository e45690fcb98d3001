"""A decoder with documents: their keys and values, and decoding after them."""
