"""Parameters, FLOPs, step time and peak memory of the variants."""
