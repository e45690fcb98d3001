"""A draft model with another tokenizer, as a back end of its target's vocabulary."""
