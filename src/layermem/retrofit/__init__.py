"""Layer memory for models that exist already, and checkpoints of other layouts as models of ours.

It does not know: training, which presets there are, the command line.
"""
