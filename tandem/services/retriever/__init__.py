"""One side's documents: ingested, stored, searched. The same program at both sides."""
