"""Search in documents: what is found, how fast, and what survives a killed writer."""
