"""Run folders and analyses with made-up numbers, for what reads them."""

import json
from dataclasses import replace

import yaml

from layermem_bench.analysis.result import (
    Analysis,
    AnalysisOptions,
    ByLayer,
    Layout,
    ModelAnalysis,
    ProbeAccuracy,
    Routing,
)
from layermem_bench.config.run import Model, Run, Task, to_dict
from layermem_bench.run.folder import RunFolder

SIZES = Model(
    hidden_size=16, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=50
)

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def record(path, *, final=0.5, right=None, ended=True, rows=4, count=20, **changes):
    """Write a run's folder: validation losses fall to ``final``; ``right``: share it solves of
    ``count`` problems.

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
    folder.config.write_text(yaml.dump({**to_dict(run), "about": about}, Dumper=_DUMPER))
    ended = ended and diverged is None
    for i in range(1, rows + 1):
        at = {"step": run.max_steps * i // rows if ended else 10 * i, "tokens": 1000 * i}
        speed = {"flops": 7000 * i, "tokens_per_second": 50.0 + i}
        folder.append_row({**at, "loss": final + rows - i, **speed})
        solved = {} if right is None else {"val_accuracy": right * i / rows}
        folder.append_row({**at, "val_loss": final + rows - i, **solved})
    if diverged is not None:
        folder.record_divergence(run.id, diverged, f"the loss is not finite at step {diverged}")
    if ended:
        folder.final.mkdir()
    if ended and right is not None:
        shares = {"accuracy": right, "steps": right / 2, "interval": [right - 0.1, right + 0.1]}
        shares["steps_interval"] = [right / 2 - 0.1, right / 2 + 0.1]
        by = {"operands": {"2": {**shares, "count": count}}}
        result = {"chance": 0.1, "faults": {}, "by": by, "count": count, "run_id": run.id, **shares}
        folder.result.write_text(json.dumps(result))
    return folder.path


def an_analysis(words, lime=None, plain=None):
    """Return an analysis of two models of 2 layers, with made-up numbers and these run ids."""
    spread = {"deviation": (0.1, 0.1), "shuffled": (0.5,), "chance": 0.5}
    hidden = ProbeAccuracy(mean=(0.4, 0.5), **spread)
    routed = ProbeAccuracy(mean=(0.6, 0.7), **spread)
    routing = Routing(
        heatmap=((1.0, 0.0), (0.5, 0.5)),
        heads=(((1.0, 0.0),), ((0.5, 0.5),)),
    )

    def model(name, run_id, routing=None):
        by_representation = {"hidden": hidden, "routed": routed}
        return ModelAnalysis(
            **{"class_name": name, "layers": 2, "width": 16, "parameters": 9, "run_id": run_id},
            entropy={
                kind: ByLayer(mean=accuracy.mean, deviation=accuracy.deviation)
                for kind, accuracy in by_representation.items()
            },
            separability={"paper": by_representation, "converged": by_representation},
            layout=Layout(
                labels=(0, 1),
                layers={0: ((0.0, 0.0), (1.0, 1.0)), 1: ((0.0, 1.0), (1.0, 0.0))},
            ),
            routing=routing,
        )

    return Analysis(
        command="layermem analyze",
        options=AnalysisOptions(words=tuple(words), each=10, length=8),
        sequences=4,
        models={"lime": model("Lime", lime, routing), "plain": model("Plain", plain)},
    )
