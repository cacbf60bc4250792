"""The run's config: there and back, refusals that name the value, an id that holds still."""

import dataclasses

import pytest

from layermem_bench.config import host as host_config
from layermem_bench.config import labels as labels_config
from layermem_bench.config import run as config
from layermem_bench.config import task as task_config
from layermem_bench.config.run import Data, Model, Optim, Run, run_from_dict, to_dict


def classes(cls=Run):
    yield cls
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(field.default_factory):
            yield from classes(field.default_factory)


def test_there_and_back():
    run = Run(
        variant="plain",
        track=("tensorboard",),
        model=Model(options=("router_init=identity", "router_window=4"), num_key_value_heads=2),
        data=Data(validation="v.jsonl", isolate_documents=True),
        optim=Optim(lr=3e-4, router_lr=1e-3),
    )
    assert run_from_dict(to_dict(run)) == run
    assert run_from_dict({}) == Run()


def test_options_are_json_where_they_are_json():
    fields = Model(options=("a=1", "b=2.5", "c=true", "d=identity", "e=[1, 2]", "f=x=y"))
    assert fields.variant_fields() == {
        "a": 1,
        "b": 2.5,
        "c": True,
        "d": "identity",
        "e": [1, 2],
        "f": "x=y",
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sede": 1}, "unknown sede; there are .*seed"),
        ({"optim": {"learning_rate": 1}}, "unknown optim.learning_rate; there are .*lr"),
        ({"seed": "one"}, "seed must be int, got 'one'"),
        ({"seed": True}, "seed must be int, got True"),
        ({"optim": {"lr": "fast"}}, "optim.lr must be float, got 'fast'"),
        ({"optim": 3}, r"optim\. must hold named fields, got 3"),
        ({"optim": {"schedule": "step"}}, "optim.schedule must be one of 'cosine', .*got 'step'"),
        ({"optim": {"lr": -1.0}}, "optim.lr must be at least 0, got -1.0"),
        ({"optim": {"beta1": 1.0}}, r"optim.beta1 must be in \[0, 1\), got 1.0"),
        ({"max_steps": 0}, "max_steps must be at least 1, got 0"),
        ({"data": {"validation_share": 1.5}}, "validation_share must be in \\(0, 1\\), got 1.5"),
        ({"task": {"repeated": 9}}, "repeated=9 and task.repeats=1 have an effect together"),
        (
            {"task": {"examples": 9, "repeated": 9, "repeats": 2}},
            r"task.repeated \(9\) must be fewer than task.examples \(9\)",
        ),
        ({"data": {"block_size": 1}}, "data.block_size must be at least 2, got 1"),
        ({"model": {"options": ["router"]}}, "NAME=VALUE each, got 'router'"),
        ({"track": ["mlflow"]}, "track must be one of .*got 'mlflow'"),
    ],
)
def test_refusals_name_the_value_and_what_would_be_right(values, message):
    with pytest.raises(ValueError, match=message):
        run_from_dict(values)


def test_every_field_has_its_help():
    import ast
    import inspect

    documented = set()
    source = "".join(map(inspect.getsource, (config, host_config, labels_config, task_config)))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            for statement, following in zip(node.body, node.body[1:], strict=False):
                if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
                    documented.add((node.name, statement.target.id))
    for cls in classes():
        for field in dataclasses.fields(cls):
            assert (cls.__name__, field.name) in documented
