"""What test_seq_vcr.py has two processes do in one launch: a run with a penalty, each way."""

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
ways = {
    "ddp": run.compute,
    "fsdp": replace(run.compute, shard=True),
    "keeping": replace(run.compute, shard=True, keep_whole="all", micro_batch=2),
}
for way, compute in ways.items():
    train(replace(run, compute=compute), root / way)
if distributed.get_rank() == 0:
    rewound(root / "one", root / "one-fsdp")
    rewound(root / "fsdp", root / "fsdp-ddp")
distributed.barrier()
for way in ("fsdp", "ddp"):
    (begun,) = root.glob(f"*-{way}")
    train(replace(run, compute=ways[way]), begun, resume=True)
sys.stdout.flush()
# Taking the group apart may wait for ever (torch 2.13).
os._exit(0)
