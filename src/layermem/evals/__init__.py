"""Evaluation of a trained model: generation, solving a task's problems, perplexity of documents.

It does not know: how the model was trained, how results are displayed.
"""
