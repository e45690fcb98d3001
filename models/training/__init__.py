"""Training of the demo pair: corpus, tokenizer, architectures, loop, objectives, export, card.

Nothing in `tandem/` or `services/` may import this package; it imports nothing of theirs.
"""
