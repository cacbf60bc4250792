"""Text to blocks of tokens: where it comes from, tokenizers, the prepared file, the blocks.

It does not know: models, optimisers, runs.
"""
