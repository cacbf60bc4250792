"""Studies: arms x boards x seeds x learning rates under conditions -> records -> one table."""
