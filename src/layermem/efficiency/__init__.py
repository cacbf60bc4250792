"""Parameters, FLOPs, step time and peak memory of the variants.

It does not know: training runs, how well a model does.
"""
