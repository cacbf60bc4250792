"""Evaluations of checkpoints."""
