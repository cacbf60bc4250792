"""Weights & Biases: a run that is resumed goes on with its run there.

transformers' callback begins a new run in every process, unless one is open; here the folder's own
is opened before, and closed at the end, so that the next run of the process has its own.

It does not know: what is logged.
"""

import importlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from layermem.runs import RunFolder, write_whole


@contextmanager
def continued(folder: RunFolder) -> Iterator[None]:
    """Have the run of a folder open for as long as the block lasts; one that is open already stays.

    Its id is made once and kept in ``wandb.txt`` (a copy of a folder is the same run). Steps after
    the checkpoint are logged again. WANDB_RUN_ID and WANDB_RESUME have the last word, as always.
    """
    # Asked for by name: it is there only where a run is tracked so.
    wandb: Any = importlib.import_module("wandb")
    if wandb.run is not None:
        yield
        return
    wandb.init(
        project=os.getenv("WANDB_PROJECT", "huggingface"),
        name=folder.path.name,
        **_identity(folder),
    )
    try:
        yield
    finally:
        wandb.finish()


def _identity(folder: RunFolder) -> dict[str, Any]:
    if "WANDB_RUN_ID" in os.environ:
        return {}
    path = folder.path / "wandb.txt"
    if not path.exists():
        write_whole(path, secrets.token_hex(4) + "\n")
    return {"id": path.read_text(encoding="utf-8").strip(), "resume": "allow"}
