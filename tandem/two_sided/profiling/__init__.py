"""What a side's profiler reads and exports: measured steps, metrics, Prometheus."""
