"""Evaluation of a trained model: generation, solving a task's problems, perplexity of documents."""
