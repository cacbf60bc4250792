"""Run folders with made-up records, for what reads them."""

import json
from dataclasses import replace

import yaml

from layermem.config import Model, Run, Task, to_dict
from layermem.runs import RunFolder

SIZES = Model(
    hidden_size=16, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=50
)


def record(path, *, final=0.5, right=None, ended=True, counted=True, rows=4, **changes):
    """Write a run's folder: validation losses fall to ``final``; ``right``: share it solves."""
    changes.setdefault("model", SIZES)
    if right is not None:
        changes.setdefault("task", Task(name="arithmetic", examples=50, options=("operands=2",)))
    run = replace(Run(preset="made-up", max_steps=max(1, 10 * rows)), **changes)
    folder = RunFolder(path)
    folder.create()
    about = {"run_id": run.id, "command": f"layermem train made-up --seed {run.seed}"}
    folder.config.write_text(yaml.safe_dump({**to_dict(run), "about": about}))
    for i in range(1, rows + 1):
        at = {"step": 10 * i, "tokens": 1000 * i}
        speed = {"flops": 7000 * i, "tokens_per_second": 50.0 + i} if counted else {}
        folder.append({**at, "loss": final + rows - i, **speed})
        solved = {} if right is None else {"val_accuracy": right * i / rows}
        folder.append({**at, "val_loss": final + rows - i, **solved})
    if ended:
        folder.final.mkdir()
    if ended and right is not None:
        shares = {"accuracy": right, "steps": right / 2, "interval": [right - 0.1, right + 0.1]}
        result = {"chance": 0.1, "faults": {}, "by": {"operands": {"2": shares}}, **shares}
        folder.result.write_text(json.dumps(result))
    return folder.path
