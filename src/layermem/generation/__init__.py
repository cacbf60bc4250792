"""Serving: text from trained models, many prompts at once."""
