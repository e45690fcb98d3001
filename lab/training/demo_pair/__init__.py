"""Training of the demo pair: corpus, tokenizer, architectures, loop, objectives, export, card."""
