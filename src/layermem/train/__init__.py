"""Training: the trainer, its optimizer and data order, and a run from its config to its folder.

It does not know: which presets and variants there are, figures, the command line.
"""
