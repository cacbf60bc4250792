"""Saved models of other layouts become saved models of ours, or of transformers."""
