"""What a whole run costs as the plain decoder, counted in closed form, or measured on this machine.

Neither torch nor transformers is imported before something is measured, so that presets are listed
at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from layermem.models.counting import plain_sizes
from layermem_bench.config.run import Run
from layermem_bench.efficiency.costs import cost
from layermem_bench.efficiency.model_sizes import model_sizes
from layermem_bench.results.costs import Measurement

# FLOPs of a micro-batch beyond which a run is not measured: minutes for each step.
_MOST_FLOPS = {"cpu": 1e12, "cuda": 2e16}
_REPEATS = 3


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
    def micro_batch(self) -> int:
        """Sequences of a micro-batch."""
        return min(self.run.compute.micro_batch, self.run.optim.batch_size)

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


def measure_runs(
    costs: Sequence[RunCost], variants: Sequence[str] = ("plain", "lime")
) -> Iterator[Mapping[str, Measurement] | None]:
    """Yield what a micro-batch of each run takes with each variant; None: it is too large here.

    Micro-batches of the same sizes and tokens are measured once.
    """
    from layermem_bench.efficiency.measuring import Shape, device_and_precision, measure

    device, precision = device_and_precision()
    measured: dict[object, Mapping[str, Measurement]] = {}
    for each in costs:
        (fields, _), batch, tokens = (
            model_sizes(each.run),
            each.micro_batch,
            round(each.mean_tokens),
        )
        if batch * tokens * each.flops_per_token > _MOST_FLOPS[device]:
            yield None
            continue
        key = (tuple(sorted(fields.items())), tokens, batch)
        if key not in measured:
            shape = Shape(batch=batch, tokens=tokens, device=device, precision=precision)
            models = {name: (name, fields) for name in variants}
            measured[key] = measure(models, shape, _REPEATS)
        yield measured[key]
