"""Tracking with Weights & Biases: a resumed run continues its own run there.

transformers' callback starts a new run in every process, unless one is open. Here the run of the
folder is opened before training and closed after it, so that another run of the same process opens
its own.
"""

import importlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from layermem.runs import RunFolder, write_atomically


@contextmanager
def open_wandb_run(folder: RunFolder) -> Iterator[None]:
    """Keep the tracked run of a folder open during the block; a run that is open already is kept.

    Its id is drawn once and kept in ``wandb.txt`` (a copy of a folder is the same run). Steps after
    the checkpoint are logged again. WANDB_RUN_ID and WANDB_RESUME take precedence.
    """
    # Imported here, since it is an optional dependency that only tracked runs need.
    wandb: Any = importlib.import_module("wandb")
    if wandb.run is not None:
        yield
        return
    wandb.init(
        project=os.getenv("WANDB_PROJECT", "huggingface"),
        name=folder.path.name,
        **_run_identity(folder),
    )
    try:
        yield
    finally:
        wandb.finish()


def _run_identity(folder: RunFolder) -> dict[str, Any]:
    if "WANDB_RUN_ID" in os.environ:
        return {}
    path = folder.path / "wandb.txt"
    if not path.exists():
        write_atomically(path, secrets.token_hex(4) + "\n")
    return {"id": path.read_text(encoding="utf-8").strip(), "resume": "allow"}
