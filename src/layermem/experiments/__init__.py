"""Presets, and one file for each table or figure.

It does not know: the command line.
"""
