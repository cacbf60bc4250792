"""A run as data: frozen dataclasses that check themselves, and what identifies a run."""
