"""Serving: text from trained models, many prompts at once.

It does not know: training, runs, presets, the command line.
"""
