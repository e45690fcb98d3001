"""The inputs and exports of a side's profiler: measured steps, metrics, Prometheus."""
