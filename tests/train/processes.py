"""What two processes do, for test_processes.py: run by torchrun, writes what it saw as JSON.

torchrun --nproc-per-node 2 processes.py PROBE FOLDER
"""

import json
import sys
from pathlib import Path

import torch
from small_run import a_run, curve

from layermem.train.run import train
from layermem.train.trainer import Trainer

FOLDER = Path(sys.argv[2])


def copied():
    """DDP: how it was set up."""
    seen = {}
    step = Trainer.training_step

    def watched(self, model, *args, **kwargs):
        group = torch.distributed.group.WORLD
        seen["kind"] = type(model).__name__
        seen["looks for unused parameters"] = model.find_unused_parameters
        seen["timeout"] = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
        return step(self, model, *args, **kwargs)

    Trainer.training_step = watched
    run = a_run(FOLDER, max_steps=2, eval_every=2, save_every=0, compute={"ddp_timeout": 77})
    return {"curve": curve(train(run, FOLDER / "copied")), **seen}


if __name__ == "__main__":
    seen = globals()[sys.argv[1]]()
    if torch.distributed.get_rank() == 0:
        (FOLDER / f"{sys.argv[1]}.json").write_text(json.dumps(seen))
