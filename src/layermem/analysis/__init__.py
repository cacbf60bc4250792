"""What goes on inside a model: arrays in, arrays out.

It does not know: figures, pages, how a model was trained.
"""
