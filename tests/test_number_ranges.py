"""Every number of every config and command has a range, and what is out of it is refused."""

import dataclasses
import math

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from layermem.models.registry import list_variants, lookup
from layermem_base.number_ranges import Range, check_numbers, number_types, ranges
from layermem_bench.cli import COMMANDS
from layermem_bench.config import run as config

CONFIGS = [
    *(config.Model, config.Data, config.Task, config.Optim, config.Host, config.Compute),
    config.Run,
    *(lookup(name).config for name in list_variants()),
]
OPTIONS = [kind for kind, _ in COMMANDS.values()]
# Fields of transformers' own config, whose ranges are its to check; the ids of tokens are ours too.
THEIRS = {f.name for f in dataclasses.fields(PreTrainedConfig)}
THEIRS -= {"pad_token_id", "bos_token_id", "eos_token_id"}
# The config compares it with the number of layers.
OF_LAYERS = {"storage"}


def own_numbers(kind):
    """Return the numeric fields of a dataclass, but for those of transformers."""
    return {f.name for f in dataclasses.fields(kind) if number_types(f.type)} - THEIRS - OF_LAYERS


@pytest.mark.parametrize("kind", [*CONFIGS, *OPTIONS], ids=lambda kind: kind.__name__)
def test_every_number_has_a_range(kind):
    assert own_numbers(kind) <= {name for name, _, _ in ranges(kind)}


@pytest.mark.parametrize("kind", CONFIGS, ids=lambda kind: kind.__name__)
def test_numbers_out_of_range_are_refused_by_name(kind):
    for name, allowed, _ in ranges(kind):
        bad = [math.nan, math.inf, -math.inf]
        if allowed.least > -math.inf:
            bad.append(int(allowed.least) - 1)
        if allowed.most < math.inf:
            bad.append(int(allowed.most) + 1)
        hint = next(f.type for f in dataclasses.fields(kind) if f.name == name)
        for value in bad:
            given = [[value]] if "list[list" in str(hint) else value
            given = (value,) if "tuple" in str(hint) else given
            # A strict config says first that a float is no integer; both name the field.
            with pytest.raises((ValueError, TypeError, StrictDataclassError), match=name):
                made = kind(**{name: given})
                # A run checks its parts.
                config.Run(**{kind.__name__.lower(): made})


@dataclasses.dataclass
class Rates:
    rates: tuple[float, ...] = dataclasses.field(
        default=(), metadata={"range": Range(0, brackets="(]")}
    )
    steps: int | None = dataclasses.field(default=None, metadata={"range": Range(1, 9)})


def test_each_number_of_several_is_checked():
    check_numbers(Rates(rates=(1e-3, 1.0), steps=9))
    check_numbers(Rates())
    wrong = {"rates": [(1e-3, 0.0), (math.nan,), (10**400,)], "steps": [0, 10, 2.5, 10**400, True]}
    for name, value in ((name, value) for name, values in wrong.items() for value in values):
        with pytest.raises(ValueError, match=name):
            check_numbers(Rates(**{name: value}))
