"""What a whole run costs as the plain decoder, counted in closed form.

Neither torch nor transformers is imported, so that presets are listed at once.
"""

from dataclasses import dataclass

from layermem_bench.config.counting import plain_sizes
from layermem_bench.config.run import Run
from layermem_bench.efficiency.costs import cost
from layermem_bench.efficiency.model_sizes import model_sizes


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """The closed-form costs of a run, as the plain decoder."""

    run: Run
    """The run."""
    mean_tokens: float
    """Mean tokens of a sequence."""
    parameters: int
    """Trainable parameters."""
    flops_per_token: float
    """FLOPs of a training step for one token."""

    @property
    def sequences(self) -> int:
        """Sequences of the whole run."""
        return self.run.max_steps * self.run.optim.batch_size

    @property
    def tokens(self) -> int:
        """Tokens of the whole run."""
        return round(self.sequences * self.mean_tokens)

    @property
    def flops(self) -> float:
        """FLOPs of the whole run."""
        return self.tokens * self.flops_per_token


def run_cost(run: Run) -> RunCost:
    """Return what a run costs."""
    fields, length = model_sizes(run)
    tokens = round(length)
    step = cost(plain_sizes(fields), None, tokens)
    return RunCost(
        run=run,
        mean_tokens=length,
        parameters=step.parameters,
        flops_per_token=step.training / tokens,
    )
