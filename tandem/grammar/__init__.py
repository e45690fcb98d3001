"""Grammars: what an answer must match, as masks of a vocabulary. The only room that knows
llguidance."""
