"""Analysis of what a model computes inside: arrays in, arrays out.

It does not know: figures, pages, how a model was trained.
"""
