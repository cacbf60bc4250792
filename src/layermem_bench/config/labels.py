"""What a run is in tables: its board, the conditions that it counts under, its arm."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The labels of a run: with its seed, its place in every table. They do not decide its id."""

    board: str = ""
    """Board whose tables the run is in; empty: PRESET (DATA)."""
    conditions: tuple[str, ...] = ()
    """What is equal between it and the board's other runs: tokens, time, parameters. A run of a
    board without any tried a learning rate; a run without a board counts as it is."""
    arm: str = ""
    """Arm that it is a seed of; empty: the variant with its options."""
