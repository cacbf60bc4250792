"""Presets, and one file for each table or figure."""
