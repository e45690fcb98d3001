"""What the suite promises while things break, callers press or hours pass."""
