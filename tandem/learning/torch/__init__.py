"""Low-rank adapters computed with torch; nothing else of `tandem.learning` imports it."""
