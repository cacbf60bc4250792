"""What test_resume.py has two processes do in one launch: begin each way, go on each other way."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import yaml
from small_run import rewound
from torch import distributed

from layermem.config import run_from_dict
from layermem.train.run import train

root = Path(sys.argv[1])
run = run_from_dict(yaml.safe_load((root / "run.yaml").read_text()))
ways = {"ddp": run, "fsdp": replace(run, compute=replace(run.compute, shard=True))}
for way, each in ways.items():
    train(each, root / way)
pairs = "one ddp", "one fsdp", "ddp fsdp", "fsdp ddp", "fsdp fsdp"
for begun, way in map(str.split, pairs):
    if distributed.get_rank() == 0:
        rewound(root / begun, root / f"{begun}-{way}")
    distributed.barrier()
    train(ways[way], root / f"{begun}-{way}", resume=True)
sys.stdout.flush()
# Taking the group apart may wait for ever (torch 2.13).
os._exit(0)
