"""Figures and pages from run folders.

It does not know: torch, models, how anything was trained.
"""
