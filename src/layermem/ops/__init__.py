"""Tensor functions without state.

It does not know: modules, configs, models.
"""
