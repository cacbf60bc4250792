"""Training: parameter groups and schedules, the trainer, a run from its config to its folder.

It does not know: which presets and variants there are, figures, the command line.
"""
