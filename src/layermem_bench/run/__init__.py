"""Training: the loop, its optimizer and data order, and a run from its config to its folder."""
