"""Analysis of what a model computes inside: arrays in, arrays out."""
