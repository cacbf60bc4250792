"""What a whole run costs as the plain decoder, counted in closed form, and what it takes here.

Neither torch nor transformers is imported before something is measured, so that presets are listed
at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from layermem.config import Run
from layermem.counting import plain_sizes
from layermem.efficiency.costs import cost
from layermem.efficiency.model_sizes import model_sizes
from layermem.results.costs import Measurement

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
    def tokens(self) -> int:
        """Tokens of the whole run."""
        return round(self.sequences * self.mean_tokens)

    @property
    def flops(self) -> float:
        """FLOPs of the whole run."""
        return self.tokens * self.flops_per_token


@dataclass(frozen=True, kw_only=True)
class RunMeasurement:
    """What a run takes on this machine, with one variant."""

    seconds: float
    """All its training steps, from the median time of a micro-batch."""
    peak_bytes: int | None
    """Peak memory of model, optimiser and a micro-batch; None: the system does not say."""


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
) -> Iterator[Mapping[str, RunMeasurement] | None]:
    """Yield what each run takes with each variant; None: it is too large for this machine.

    Validation, solving and saving are left out. Runs of the same sizes, tokens and micro-batch are
    measured once.
    """
    from layermem.efficiency import measuring

    device, precision = measuring.device_and_precision()
    measured: dict[object, Mapping[str, Measurement]] = {}
    for each in costs:
        run, (fields, _), tokens = each.run, model_sizes(each.run), round(each.mean_tokens)
        batch = min(run.compute.micro_batch, run.optim.batch_size)
        if batch * tokens * each.flops_per_token > _MOST_FLOPS[device]:
            yield None
            continue
        key = (tuple(sorted(fields.items())), tokens, batch)
        if key not in measured:
            shape = measuring.Shape(batch=batch, tokens=tokens, device=device, precision=precision)
            models = {name: (name, fields) for name in variants}
            measured[key] = measuring.measure(models, shape, _REPEATS)
        yield {
            name: RunMeasurement(
                seconds=step.seconds * each.sequences / batch, peak_bytes=step.peak
            )
            for name, step in measured[key].items()
        }
