"""What experiments share: reports, plots, texts, the machine's facts, suites of processes."""
