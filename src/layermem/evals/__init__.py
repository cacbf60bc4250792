"""Evaluation of a trained model: generation, and solving a task's problems.

It does not know: how the model was trained, how results are displayed.
"""
