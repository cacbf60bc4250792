"""Training: the trainer, its optimizer and data order, and a run from its config to its folder."""
