"""Documents on two sides (DRAGON): latency, time to first token, perplexity, placement."""
