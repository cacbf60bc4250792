"""``Task``: the part of a run's config that names generated problems to train on."""

from dataclasses import dataclass
from typing import Any

from layermem_base.number_ranges import at_least, check_numbers, number
from layermem_bench.config.named_options import check_options, parse_options


@dataclass(frozen=True, kw_only=True)
class Task:
    """Generated problems that the run is trained on in place of text."""

    name: str | None = None
    """Name of the task, as `layermem list tasks` has it; None: the run is trained on text."""
    examples: int = number(50_000, at_least(1))
    """Problems in the training set."""
    repeated: int = number(0, at_least(0))
    """How many of these, the first, stand there `repeats` times, the others once: what small models
    do not find among many problems they may find among few that they see often."""
    repeats: int = number(1, at_least(1))
    """How often the first `repeated` stand in the training set."""
    validation: int = number(500, at_least(1))
    """Problems in the validation set, solved at every validation."""
    test: int = number(2_000, at_least(1))
    """Problems in the test set, solved at the end."""
    seed: int = number(0, at_least(0))
    """Seed of the problems; it does not depend on the run's seed."""
    tokenizer: str | None = None
    """Tokenizer, as in --data.tokenizer; None: the task's own, a token for each word."""
    options: tuple[str, ...] = ()
    """Options of the task, each NAME=VALUE (operands=6), added to the preset's; an option replaces
    the preset's option of the same name. `layermem list tasks` shows them with their defaults; that
    of what is held out or drawn is the strict one (held_out=strict, graphs=crossed)."""

    def __post_init__(self) -> None:
        check_numbers(self, "task.")
        if (self.repeated > 0) != (self.repeats > 1):
            raise ValueError(
                f"task.repeated={self.repeated} and task.repeats={self.repeats} have an effect "
                "together: give how many problems are repeated, and how often (at least 2)"
            )
        if self.repeated >= self.examples:
            raise ValueError(
                f"task.repeated ({self.repeated}) must be fewer than task.examples "
                f"({self.examples}): to repeat all problems, train for more steps"
            )
        check_options("task", self.options)

    @property
    def sequences(self) -> int:
        """Sequences of the training set, repeats counted."""
        return self.examples + self.repeated * (self.repeats - 1)

    def fields(self) -> dict[str, Any]:
        """Return ``options`` as a dict."""
        return parse_options(self.options)
