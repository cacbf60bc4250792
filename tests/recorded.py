"""Run folders and analyses with made-up numbers, for what reads them."""

import json
from dataclasses import replace

import yaml

from layermem.config import Model, Run, Task, to_dict
from layermem.runs import RunFolder

SIZES = Model(
    hidden_size=16, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=50
)


def record(path, *, final=0.5, right=None, ended=True, counted=True, rows=4, **changes):
    """Write a run's folder: validation losses fall to ``final``; ``right``: share it solves.

    ``run``: the run itself, in place of what it differs in from one made up. ``diverged``: the step
    that it diverged at. ``about``: what it recorded beside its fields.
    """
    recorded = changes.pop("about", {})
    run, diverged = changes.pop("run", None), changes.pop("diverged", None)
    changes.setdefault("model", SIZES)
    if right is not None:
        changes.setdefault("task", Task(name="arithmetic", examples=50, options=("operands=2",)))
    run = run or replace(Run(preset="made-up", max_steps=max(1, 10 * rows)), **changes)
    folder = RunFolder(path)
    folder.create()
    about = {"run_id": run.id, "command": f"layermem train made-up --seed {run.seed}", **recorded}
    folder.config.write_text(yaml.safe_dump({**to_dict(run), "about": about}))
    for i in range(1, rows + 1):
        at = {"step": 10 * i, "tokens": 1000 * i}
        speed = {"flops": 7000 * i, "tokens_per_second": 50.0 + i} if counted else {}
        folder.append_row({**at, "loss": final + rows - i, **speed})
        solved = {} if right is None else {"val_accuracy": right * i / rows}
        folder.append_row({**at, "val_loss": final + rows - i, **solved})
    ended = ended and diverged is None
    if diverged is not None:
        folder.record_divergence(run.id, diverged, f"the loss is not finite at step {diverged}")
    if ended:
        folder.final.mkdir()
    if ended and right is not None:
        shares = {"accuracy": right, "steps": right / 2, "interval": [right - 0.1, right + 0.1]}
        by = {"operands": {"2": {**shares, "count": 20}}}
        result = {"chance": 0.1, "faults": {}, "by": by, "count": 20, "run_id": run.id, **shares}
        folder.result.write_text(json.dumps(result))
    return folder.path


def an_analysis(words, lime=None, plain=None):
    """Return what analyze writes, with made-up numbers, of two models of 2 layers."""

    def by_layer(*values):
        return {"mean": list(values), "deviation": [0.1, 0.1], "shuffled": [0.5], "chance": 0.5}

    def model(name, run_id):
        kinds = {"hidden": by_layer(0.4, 0.5), "routed": by_layer(0.6, 0.7)}
        return {
            "about": {"class": name, "layers": 2, "width": 16, "parameters": 9, "run_id": run_id},
            "entropy": kinds,
            "separability": {"paper": kinds, "converged": kinds},
            "layout": {
                "labels": [0, 1],
                "layers": {"0": [[0, 0], [1, 1]], "1": [[0, 1], [1, 0]]},
            },
        }

    routing = {
        "heatmap": [[1, 0], [0.5, 0.5]],
        "heads": [[[1, 0]], [[0.5, 0.5]]],
        "readings": [{"layer": 1, "off_layer_share": 0.5, "effective": 2.0, "sources": [0]}],
        "circuits": [],
    }
    asked = {"words": words, "each": 10, "alpha": 1.0, "text": None, "length": 8, "seed": 0}
    models = {"lime": {**model("Lime", lime), "routing": routing}, "plain": model("Plain", plain)}
    return {"asked": asked, "sequences": 4, "command": "layermem analyze", "models": models}
