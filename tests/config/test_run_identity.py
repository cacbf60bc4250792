"""One identity for a run: every field is declared, and ids and checks agree over all of them."""

import tarfile
import typing
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Literal

import pytest
import yaml

from layermem_bench.config.host import Host
from layermem_bench.config.run import Compute, Data, Model, Optim, Run, Task, run_from_dict
from layermem_bench.config.run_identity import ADDED, DOES_NOT_DECIDE, differences

HOST = {"variant": "host", "host": Host(model="m")}
# Runs in which a field may have another value than its default's.
BASES = {
    "task": Run(task=Task(name="mqar", repeated=4, repeats=2)),
    "host": Run(**HOST),
    "compute.checkpoint_every": Run(compute=Compute(checkpoint_activations=True)),
    "host.window": Run(variant="host", host=Host(model="m", memory="last", window=2)),
}
# Where the next number or the next choice is no value that a run can have.
OTHERS = {
    "variant": "plain",
    "host.memory": {"memory": "none", "train": "all"},
    "host.train": "all",
    "track": ("wandb",),
}


def leaves(cls=Run, path=""):
    """Yield dotted name and type of every field of a run."""
    hints = typing.get_type_hints(cls)
    for field in fields(cls):
        hint = hints[field.name]
        if is_dataclass(hint):
            yield from leaves(hint, f"{field.name}.")
        else:
            yield f"{path}{field.name}", hint


LEAVES = dict(leaves())


def changed(name):
    """Return a run, and one that differs from it in one field."""
    part, _, field = name.rpartition(".")
    run = BASES.get(name) or BASES.get(part) or Run()
    config = getattr(run, part) if part else run
    value = OTHERS.get(name)
    value = another(LEAVES[name], getattr(config, field)) if value is None else value
    other = replace(config, **(value if isinstance(value, dict) else {field: value}))
    return run, replace(run, **{part: other}) if part else other


def another(hint, value):
    """Return another value of a type."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return next(choice for choice in arguments if choice != value)
    if type(None) in arguments:
        hint = next(argument for argument in arguments if argument is not type(None))
        if typing.get_origin(hint) is Literal:
            return another(hint, value)
    if typing.get_origin(hint) is tuple:
        return ("a=1",)
    if hint is bool:
        return not value
    if hint is int:
        return (value or 0) + 1
    return (value or 0.5) / 2 if hint is float else f"{value}x"


def test_the_tables_name_fields():
    assert DOES_NOT_DECIDE | ADDED.keys() <= LEAVES.keys()


@pytest.mark.parametrize("name", LEAVES)
def test_id_and_checks_agree_on_every_field(name):
    run, other = changed(name)
    assert run != other
    decides = name not in DOES_NOT_DECIDE
    assert (run.id != other.id) == decides
    named = {change for change, *_ in differences(run, other)}
    assert (name in named) == decides and len(named) <= 2


def test_the_order_of_options_says_nothing():
    runs = [Run(model=Model(options=options)) for options in (("a=1", "b=2"), ("b=2", "a=1"))]
    assert runs[0].id == runs[1].id and not differences(*runs)
    assert differences(runs[0], Run(model=Model(options=("a=true", "b=2"))))


def test_ids_are_of_this_form():
    run = Run(optim=Optim(lr=3e-3), data=Data(cache="here"))
    assert len(run.id) == 12 and int(run.id, 16) >= 0
    assert run.id == replace(run, preset="b", data=Data()).id != replace(run, seed=1).id


def test_a_whole_number_is_what_a_config_reads():
    """In Python 0 for 0.0, which a config has."""
    whole, read = Run(optim=Optim(lr=1, weight_decay=0)), Run(optim=Optim(lr=1.0, weight_decay=0.0))
    assert whole.id == read.id and not differences(whole, read)
    assert Run(max_steps=7).id == Run(max_steps=7).id != Run(max_steps=8).id


def test_recorded_runs_are_read_and_keep_their_ids():
    """Also of earlier versions, whose runs have parts that are gone."""
    archives = sorted(Path(__file__).parents[2].glob("docs/records/runs/*.tar.xz"))
    assert len(archives) == 19
    for path in archives:
        with tarfile.open(path) as archive:
            configs = [each for each in archive if each.name.endswith("/config.yaml")]
            for member in configs[::8]:
                fields = yaml.load(archive.extractfile(member), yaml.CSafeLoader)
                about = fields.pop("about")
                assert run_from_dict(fields).id == about["run_id"]
