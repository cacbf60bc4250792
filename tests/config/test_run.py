"""A run as data: there and back, refusals, help of every field, an identity that holds still."""

import ast
import inspect
import tarfile
import typing
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Literal

import pytest
import yaml

from layermem_bench.config import parts
from layermem_bench.config import run as config
from layermem_bench.config.run import (
    ADDED,
    DOES_NOT_DECIDE,
    HOST,
    Compute,
    Data,
    Host,
    Model,
    Optim,
    Run,
    Task,
    run_from_dict,
    to_dict,
)

# Runs in which a field may have another value than its default's.
BASES = {
    "task": Run(task=Task(name="mqar", repeated=4, repeats=2)),
    "host": Run(variant=HOST, host=Host(model="m")),
    "compute.checkpoint_every": Run(compute=Compute(checkpoint_activations=True)),
    "host.window": Run(variant=HOST, host=Host(model="m", memory="last", window=2)),
}
# Where the next number or the next choice is no value that a run can have.
OTHERS = {
    "variant": "plain",
    "host.memory": {"memory": "none", "train": "all"},
    "host.train": "all",
    "track": ("wandb",),
}


def leaves(cls=Run, path=""):
    """Yield the class, the dotted name and the type of every field of a run."""
    hints = typing.get_type_hints(cls)
    for field in fields(cls):
        hint = hints[field.name]
        if is_dataclass(hint):
            yield from leaves(hint, f"{field.name}.")
        else:
            yield cls, f"{path}{field.name}", hint


LEAVES = {name: hint for _, name, hint in leaves()}


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
    arguments = [each for each in typing.get_args(hint) if each is not type(None)]
    if typing.get_origin(hint) is Literal:
        return next(choice for choice in arguments if choice != value)
    if typing.get_origin(hint) is tuple:
        return ("a=1",)
    hint = arguments[0] if arguments else hint
    if hint is bool:
        return not value
    if hint is int:
        return (value or 0) + 1
    return (value or 0.5) / 2 if hint is float else f"{value}x"


def test_there_and_back():
    run = Run(
        variant="plain",
        track=("tensorboard",),
        model=Model(options=("router_init=identity", "router_window=4"), num_key_value_heads=2),
        data=Data(validation="v.jsonl", isolate_documents=True),
        optim=Optim(lr=3e-4, router_lr=1e-3),
    )
    assert run_from_dict(to_dict(run)) == run and run_from_dict({}) == Run()


def test_options_are_json_where_they_are_json():
    options = Model(options=("a=1", "b=2.5", "c=true", "d=identity", "e=[1, 2]", "f=x=y"))
    assert options.variant_fields() == {
        **{"a": 1, "b": 2.5, "c": True, "d": "identity", "e": [1, 2], "f": "x=y"}
    }


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"sede": 1}, "sede"),
        ({"optim": {"learning_rate": 1}}, "optim.learning_rate"),
        ({"seed": True}, "seed"),
        ({"optim": {"lr": "fast"}}, "optim.lr"),
        ({"optim": 3}, "optim"),
        ({"optim": {"schedule": "step"}}, "optim.schedule"),
        ({"optim": {"lr": -1.0}}, "optim.lr"),
        ({"task": {"repeated": 9}}, "task.repeats"),
        ({"task": {"examples": 9, "repeated": 9, "repeats": 2}}, "task.examples"),
        ({"model": {"options": ["router"]}}, "model.options"),
        ({"track": ["mlflow"]}, "track"),
        ({"variant": HOST}, "host.model"),
        ({"host": {"model": "x"}}, "variant"),
        ({"host": {"train": "all"}}, "host.train"),
        ({"variant": HOST, "host": {"model": "x", "memory": "none"}}, "host.train"),
        ({"variant": HOST, "host": {"model": "x", "train": "lora"}}, "host.train"),
        ({"variant": HOST, "host": {"model": "x", "memory": "last"}}, "host.window"),
        (
            {"variant": HOST, "host": {"model": "x"}, "model": {"num_hidden_layers": 2}},
            "model.num_hidden_layers",
        ),
        ({"variant": HOST, "host": {"model": "x"}, "compute": {"shard": True}}, "compute.shard"),
    ],
)
def test_what_a_run_cannot_be_is_refused_by_the_field(values, named):
    with pytest.raises(ValueError, match=named):
        run_from_dict(values)


def test_every_field_has_its_help():
    documented = set()
    for node in ast.walk(ast.parse(inspect.getsource(parts) + inspect.getsource(config))):
        if isinstance(node, ast.ClassDef):
            for statement, following in zip(node.body, node.body[1:], strict=False):
                if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
                    documented.add((node.name, statement.target.id))
    assert {(cls.__name__, name.rpartition(".")[2]) for cls, name, _ in leaves()} <= documented


@pytest.mark.parametrize("name", LEAVES)
def test_id_and_checks_agree_on_every_field(name):
    run, other = changed(name)
    decides = name not in DOES_NOT_DECIDE
    assert run != other and (run.id != other.id) == decides
    named = {change for change, *_ in run.differences(other)}
    assert (name in named) == decides and len(named) <= 2
    assert DOES_NOT_DECIDE | ADDED.keys() <= LEAVES.keys()


def test_what_is_written_in_two_ways_is_one_run():
    """Options in another order, 0 for the 0.0 that a config has."""
    one, two = (Run(model=Model(options=options)) for options in (("a=1", "b=2"), ("b=2", "a=1")))
    assert one.id == two.id and not one.differences(two)
    assert one.differences(Run(model=Model(options=("a=true", "b=2"))))
    whole, read = Run(optim=Optim(lr=1, weight_decay=0)), Run(optim=Optim(lr=1.0, weight_decay=0.0))
    assert whole.id == read.id and not whole.differences(read)


def test_recorded_runs_are_read_and_keep_their_ids():
    """Also of earlier versions, whose runs have parts that are gone."""
    archives = sorted(Path(__file__).parents[2].glob("docs/records/runs/*.tar.xz"))
    if not archives:
        pytest.skip("no runs are archived in docs/records/runs")
    for path in archives:
        with tarfile.open(path) as archive:
            configs = [each for each in archive if each.name.endswith("/config.yaml")]
            for member in configs[::8]:
                fields = yaml.load(archive.extractfile(member), yaml.CSafeLoader)
                about = fields.pop("about")
                assert run_from_dict(fields).id == about["run_id"]
