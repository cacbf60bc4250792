"""A run from its config to its folder: data, model, training, the final model.

It does not know: presets, the command line.
"""

import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml
from transformers import set_seed

from layermem.config import Model, Run, run_from_dict, to_dict
from layermem.data.blocks import Blocks, prepare
from layermem.data.tokenizers import load_tokenizer
from layermem.models.registry import build
from layermem.runs import RunFolder, write_whole
from layermem.train.sharded import ShardedTrainer
from layermem.train.trainer import Trainer, arguments

logger = logging.getLogger(__name__)
# What may differ when a run goes on: how it is carried out, not what it computes.
_FREE = {
    "compute",
    "track",
    "log_every",
    "eval_every",
    "eval_blocks",
    "save_every",
    "keep",
    "preset",
}
_PACKAGES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "numpy")


def train(run: Run, out: str | os.PathLike[str], *, resume: bool = False) -> RunFolder:
    """Train; return the folder, which holds the config, the metrics and the final model.

    ``resume`` goes on from the newest checkpoint in ``out``, or from the beginning where there is
    none; a run that has ended is left as it is.
    """
    folder = RunFolder(out)
    checked = arguments(run, folder, validates=True)
    if run.compute.shard and checked.world_size == 1:
        raise ValueError(
            "compute.shard needs several processes: torchrun --nproc-per-node N -m layermem train"
        )
    is_first = checked.process_index == 0
    if is_first:
        folder.create()
    with folder.locked() if is_first else nullcontext():
        return _train(run, folder, checked, resume=resume)


def _train(run: Run, folder: RunFolder, checked: Any, *, resume: bool) -> RunFolder:
    if checked.process_index == 0:
        _claim(folder, run, resume=resume)
    with checked.main_process_first(local=False, desc="preparing the run"):
        if folder.final.exists():
            logger.info("%s has ended already", folder.path)
            return folder
        tokenizer = load_tokenizer(run.data.tokenizer)
        train, validation = prepare(run.data, tokenizer)
    blocks = partial(Blocks, block_size=run.data.block_size, isolate=run.data.isolate_documents)
    train_data, validation_data = blocks(train), blocks(validation, at_most=run.eval_blocks)
    set_seed(run.seed)
    model = build(run.variant, **model_fields(run, tokenizer))
    kind = ShardedTrainer if run.compute.shard else Trainer
    trainer = kind(run, folder, model, train_data, validation_data, tokenizer)
    checkpoint = folder.latest() if resume else None
    if checkpoint:
        logger.info("going on from %s", checkpoint)
    if not trainer.go(checkpoint):
        logger.info("stopped at step %d; --resume goes on", trainer.state.global_step)
        return folder
    _keep_final(trainer, folder)
    return folder


def load_run(path: str | os.PathLike[str]) -> Run:
    """Return the run of a config.yaml."""
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    if isinstance(values, dict):
        values.pop("about", None)
    return run_from_dict(values)


def model_fields(run: Run, tokenizer: Any) -> dict[str, Any]:
    """Return the config fields of the run's model."""
    own = {f: getattr(run.model, f) for f in Model.__dataclass_fields__ if f != "options"}
    if own["vocab_size"] is None:
        own["vocab_size"] = len(tokenizer)
    elif own["vocab_size"] < len(tokenizer):
        raise ValueError(
            f"model.vocab_size ({own['vocab_size']}) is smaller than the tokenizer's vocabulary "
            f"({len(tokenizer)}): its ids would lie beyond the embedding"
        )
    end = tokenizer.eos_token_id
    return {
        **own,
        "max_position_embeddings": max(2048, run.data.block_size),
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": tokenizer.pad_token_id,
        **run.model.variant_fields(),
    }


def _claim(folder: RunFolder, run: Run, *, resume: bool) -> None:
    """Write the config, unless the folder holds a run; then see that it is this one.

    A run that was refused before its first step (a wrong path, say) holds nothing and is no run.
    """
    if not folder.config.exists() or not (folder.rows() or folder.completed()):
        about = {"run_id": run.id, "command": shlex.join(sys.argv), **_about()}
        write_whole(
            folder.config, yaml.safe_dump({**to_dict(run), "about": about}, sort_keys=False)
        )
        return
    if not resume:
        raise FileExistsError(
            f"{folder.path} holds a run already; add --resume to go on with it, or choose another "
            "--out"
        )
    before, now = to_dict(load_run(folder.config)), to_dict(run)
    changed = [
        f"{name} was {old!r}, is {new!r}"
        for name, old, new in _differences(before, now)
        if name.split(".")[0] not in _FREE
    ]
    if changed:
        raise ValueError(
            f"{folder.path} was begun with another config: {'; '.join(changed)}. Resume it with "
            f"--config {folder.config}, or choose another --out"
        )


def _differences(before: Any, now: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            found
            for name in now
            for found in _differences(before.get(name), now[name], f"{path}.{name}".lstrip("."))
        ]
    return [] if before == now else [(path, before, now)]


def _about() -> dict[str, str]:
    """Versions, commit and machine, as far as they can be told."""
    found = {"layermem": _version("layermem"), "python": platform.python_version()}
    found |= {name: _version(name) for name in _PACKAGES}
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    found["commit"] = commit.stdout.strip() or "not a git checkout"
    return {**found, "machine": platform.machine()}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _keep_final(trainer: Trainer, folder: RunFolder) -> None:
    """Save model and tokenizer; they are in their place whole."""
    part = folder.path / ".final"
    if trainer.is_world_process_zero():
        shutil.rmtree(part, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    trainer.save_model(str(part))
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        os.replace(part, folder.final)
