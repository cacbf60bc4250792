"""Conditions under which arms meet: functions of a planned run.

tokens      the board's run as it is: the same tokens in the same order
time        so many steps as take the time of the first arm's, in a schedule of that length
parameters  an mlp so narrow that the arm has the plain decoder's parameters
"""

from dataclasses import replace

from layermem.config import Run
from layermem.counting import count_parameters
from layermem.efficiency.model_sizes import model_sizes
from layermem.models.registry import lookup

# A difference in time that timing steps again would make as well.
_SAME_TIME = 0.01
TOLERANCE = 0.005
"""Share within which parameters are equal."""


def at_equal_time(run: Run, ratio: float) -> Run:
    """Return a run of as many steps as take the time of the first arm's; its schedule is of that
    length. ``ratio``: time of its step over that of the first arm's."""
    if abs(ratio - 1) <= _SAME_TIME:
        return run
    return replace(run, max_steps=max(1, round(run.max_steps / ratio)))


def at_equal_parameters(run: Run, base: Run) -> Run:
    """Return a run whose mlp is as narrow as it takes to have the plain decoder's parameters.

    One that has no more than ``TOLERANCE`` beyond these is left as it is.
    """
    if run.host.model is not None:
        raise ValueError(
            f"{run.host.model} has the sizes of its weights, so that there are no equal "
            "parameters: leave --conditions parameters out"
        )
    plain = plain_parameters(base)
    return run if parameters(run) <= plain * (1 + TOLERANCE) else with_parameters(run, plain)


def parameters(run: Run) -> int:
    """Return the trainable parameters of the model of a run of ours."""
    fields = model_sizes(run)[0] | run.model.variant_fields()
    entry = lookup(run.variant)
    return count_parameters(entry.config(**fields), entry.variant)


def plain_parameters(run: Run) -> int:
    """Return those of the plain decoder of a run's sizes."""
    return parameters(replace(run, variant="plain"))


def with_parameters(run: Run, target: int) -> Run:
    """Return a run whose mlp is as wide as it takes to have ``target`` parameters."""
    model, ours, width = run.model, parameters(run), run.model.intermediate_size
    wider = replace(run, model=replace(model, intermediate_size=width + 1))
    width -= round((ours - target) / (parameters(wider) - ours))
    if width >= 1:
        fitted = replace(run, model=replace(model, intermediate_size=width))
        if abs(parameters(fitted) / target - 1) <= TOLERANCE:
            return fitted
    shape = f"{model.num_hidden_layers}x{model.hidden_size}"
    raise ValueError(
        f"{run.variant} has {ours:,} parameters on {run.preset} at {shape}, and no width of the "
        f"mlp gives it {target:,} within {TOLERANCE:.1%}; leave it out, or take a larger board"
    )
