"""A run from its config to its folder: data, model, training, the final model.

It does not know: presets, the command line.
"""

import hashlib
import json
import logging
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

import torch
import yaml
from transformers import AutoConfig, set_seed

import layermem
from layermem.config import Run, Task, run_from_dict, to_dict
from layermem.data.blocks import Blocks
from layermem.data.preparing import prepare
from layermem.data.tokenizers import load_tokenizer
from layermem.models.checkpoints import LLAMAS
from layermem.models.decoder import DecoderForCausalLM
from layermem.models.registry import build, lookup
from layermem.runs import RunFolder, cleared, write_whole
from layermem.tasks import registry as tasks
from layermem.train.arguments import arguments
from layermem.train.learnt import data_digest, problems_digest
from layermem.train.model_card import write_model_card
from layermem.train.origin import changes
from layermem.train.problems import Problems, problems
from layermem.train.sharded import ShardedTrainer
from layermem.train.trainer import NotFiniteError, Trainer
from layermem.train.waiting import together

logger = logging.getLogger(__name__)
# A model, its tokenizer, a task and a split; what is found, and every attempt.
Evaluate: TypeAlias = Callable[[Any, Any, Task, str], tuple[dict[str, Any], Sequence[Any]]]
_PACKAGES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "numpy")


def train(
    run: Run,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    evaluate: Evaluate | None = None,
) -> RunFolder:
    """Train; return the folder, which holds the config, the metrics and the final model.

    ``resume`` goes on from the newest checkpoint in ``out``, or from the beginning where there is
    none; a run that has ended is left as it is. ``evaluate`` (``evals.solving.evaluate``) has the
    model of a task solve problems: at each validation, and at the end for ``result.json``. SIGTERM
    and Ctrl-C stop the run with a checkpoint; a Ctrl-C is then raised (``KeyboardInterrupt``).
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
        return _train(run, folder, checked, resume, evaluate if run.task.name else None)


def _train(
    run: Run, folder: RunFolder, checked: Any, resume: bool, evaluate: Evaluate | None
) -> RunFolder:
    with together():
        if checked.process_index == 0:
            _claim(folder, run, resume=resume)
        if folder.final.exists():
            logger.info("%s has ended already", folder.path)
            return folder
        tokenizer = _tokenizer(run)
        train_data, validation_data, collate = _data(run, tokenizer)
        if checked.process_index == 0:
            precision = "bfloat16" if checked.bf16 else "float32"
            _add_about(folder, run, data_digest(train_data, validation_data), precision)
    set_seed(run.seed)
    model = _model(run, tokenizer)
    kind = ShardedTrainer if run.compute.shard else Trainer
    trainer = kind(
        run,
        folder,
        model,
        train_data,
        validation_data,
        tokenizer,
        collate=collate,
        evaluate=partial(_watch, evaluate, tokenizer, run.task) if evaluate else None,
    )
    checkpoint = folder.latest() if resume else None
    if checkpoint:
        logger.info("going on from %s", checkpoint)
    with trainer.stop.listening():
        with _noting_divergence(trainer, folder):
            ended = trainer.go(checkpoint)
            if ended:
                trainer.check_weights()
        if ended and evaluate:
            solve = partial(_keep_result, trainer, folder, evaluate, tokenizer)
            ended = trainer.stop.unless_asked(solve, trainer.args)
        if ended:
            _keep_final(trainer, folder)
        else:
            logger.info("stopped at step %d; --resume goes on", trainer.state.global_step)
    return folder


@contextmanager
def _noting_divergence(trainer: Trainer, folder: RunFolder) -> Iterator[None]:
    """A run that diverges leaves a record of it, which is gone while it goes on."""
    is_first = trainer.is_world_process_zero()
    if is_first:
        folder.diverged.unlink(missing_ok=True)
    try:
        yield
    except NotFiniteError as error:
        if is_first:
            folder.note_divergence(trainer.run.id, trainer.state.global_step, str(error))
        raise


def _tokenizer(run: Run) -> Any:
    """The pretrained model's, the task's own, or as the config says."""
    if run.model.pretrained:
        try:
            return load_tokenizer(run.model.pretrained)
        except ValueError as error:
            raise ValueError(
                f"{run.model.pretrained} has no tokenizer that a run can start with ({error}); "
                "save one into it: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            ) from error
    if run.task.name and run.task.tokenizer is None:
        return tasks.lookup(run.task.name).tokenizer(**run.task.fields())
    return load_tokenizer(run.task.tokenizer or run.data.tokenizer)


def _data(run: Run, tokenizer: Any) -> tuple[Blocks | Problems, Blocks | Problems, Any]:
    """Return what is learnt from, what validates, and how a batch is made of them."""
    if run.task.name:
        learnt, validating = problems(run.task, tokenizer)
        return learnt, validating, learnt.collate
    train, validation = prepare(run.data, tokenizer)
    blocks = partial(Blocks, block_size=run.data.block_size, isolate=run.data.isolate_documents)
    return blocks(train), blocks(validation, at_most=run.eval_blocks), None


def _model(run: Run, tokenizer: Any) -> DecoderForCausalLM:
    """Return new weights, a saved model's, or a LLaMA's with what the variant adds."""
    source, entry = run.model.pretrained, lookup(run.variant)
    if source is None:
        return build(run.variant, **model_fields(run, tokenizer))
    kind, wanted = AutoConfig.from_pretrained(source).model_type, entry.config.model_type
    if kind != wanted and kind in LLAMAS:
        fields = run.model.variant_fields()
        return entry.causal_lm.from_llama(source, dtype=torch.float32, **fields)
    if kind != wanted:
        raise ValueError(
            f"{source} is a {kind} model; a run of {run.variant} starts from one of its own, or "
            "from a LLaMA: choose another --variant"
        )
    if run.model.options:
        raise ValueError(
            f"{source} has its own {', '.join(sorted(run.model.variant_fields()))}; leave "
            "--model.options out"
        )
    model: DecoderForCausalLM = entry.causal_lm.from_pretrained(source, dtype=torch.float32)
    return model


def _watch(
    evaluate: Evaluate, tokenizer: Any, task: Task, model: DecoderForCausalLM
) -> dict[str, float]:
    """Return the shares of validation problems that a model solves."""
    found, _ = evaluate(model, tokenizer, task, "validation")
    return {"val_accuracy": found["accuracy"], "val_steps": found["steps"]}


def _keep_result(trainer: Trainer, folder: RunFolder, evaluate: Evaluate, tokenizer: Any) -> None:
    """Have the trained model solve the test problems; write what comes of it."""
    result, attempts = evaluate(trainer.model, tokenizer, trainer.run.task, "test")
    if not trainer.is_world_process_zero():
        return
    about = {
        "run_id": trainer.run.id,
        "steps_taken": trainer.state.global_step,
        "problems": problems_digest([attempt.row()["prompt"] for attempt in attempts]),
    }
    write_whole(folder.attempts, "".join(f"{json.dumps(a.row())}\n" for a in attempts))
    write_whole(folder.result, json.dumps({**about, **result}, indent=1) + "\n")


def load_run(path: str | os.PathLike[str]) -> Run:
    """Return the run of a config.yaml, edited or not."""
    return run_from_dict(_values_and_about(path)[0])


def recorded_run(folder: RunFolder) -> Run:
    """Return the run that a folder holds; a config edited since it was written is refused."""
    values, about = _values_and_about(folder.config)
    if about.get("digest", _digest(values)) != _digest(values):
        raise ValueError(
            f"{folder.config} was edited after the run wrote it, so it no longer says what was "
            "trained. Undo the edit; to train the edited config, give it another --out; what a run "
            "may change when it goes on (compute, save_every, ...) is given as an option"
        )
    return run_from_dict(values)


def _values_and_about(path: str | os.PathLike[str]) -> tuple[Any, dict[str, Any]]:
    """Return the fields of a config.yaml, and what stands under ``about``."""
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    about = values.pop("about", None) if isinstance(values, dict) else None
    return values, about if isinstance(about, dict) else {}


def _digest(values: Any) -> str:
    """Return what stands for the fields as they lie in the file, whatever version reads them."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def model_fields(run: Run, tokenizer: Any) -> dict[str, Any]:
    """Return the config fields of the run's model."""
    own = run.model.sizes()
    if doubled := sorted(own.keys() & run.model.variant_fields()):
        raise ValueError(
            f"model.options name {', '.join(doubled)}, which the config has a field for: "
            f"--model.{doubled[0].replace('_', '-')}"
        )
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

    What it goes on with is written; ``about`` still tells how it was begun. A run that was refused
    before its first step (a wrong path, say) holds nothing and is no run.
    """
    left = (folder.final, folder.result)
    holds = bool(any(p.exists() for p in left) or folder.completed() or folder.rows())
    if holds and not folder.config.exists():
        raise FileExistsError(
            f"{folder.path} holds a run, but no config.yaml that says of what: put it back, or "
            "choose another --out"
        )
    if not holds:
        _write_config(folder, run, {"run_id": run.id, "command": _command(), **_about()})
        return
    if not resume:
        raise FileExistsError(
            f"{folder.path} holds a run already; add --resume to go on with it, or choose another "
            "--out"
        )
    check_same(folder, run)
    if recorded_run(folder) != run and not folder.final.exists():
        about = _values_and_about(folder.config)[1]
        _write_config(folder, run, {**about, "run_id": run.id})


def _add_about(folder: RunFolder, run: Run, data: str, precision: str) -> None:
    """Record what the run learns and in which arithmetic, which its fields alone do not say.

    Of a run that goes on, what it began with stands; an older one's is not known.
    """
    if not (folder.rows() or folder.completed()):
        about = _values_and_about(folder.config)[1]
        _write_config(folder, run, {**about, "data": data, "precision": precision})


def check_same(folder: RunFolder, run: Run) -> None:
    """Raise unless the folder holds this run, but for how it is carried out."""
    if changed := changes(recorded_run(folder), run):
        raise ValueError(
            f"{folder.path} was begun with another config: {'; '.join(changed)}. Resume it with "
            f"--config {folder.config}, or choose another --out"
        )


def _write_config(folder: RunFolder, run: Run, about: dict[str, str]) -> None:
    values = to_dict(run)
    written = {**values, "about": {**about, "digest": _digest(values)}}
    write_whole(folder.config, yaml.safe_dump(written, sort_keys=False))


def _command() -> str:
    """Return what started this process, as a user would write it."""
    program, *rest = sys.argv
    if Path(program).name in ("__main__.py", "layermem"):
        program = "layermem"
    return shlex.join([program, *rest])


def _about() -> dict[str, str]:
    """Versions, commit and machine, as far as they can be told."""
    found = {"layermem": _version("layermem"), "python": platform.python_version()}
    found |= {name: _version(name) for name in _PACKAGES}
    found["commit"] = _commit(Path(layermem.__file__))
    return {**found, "machine": platform.machine()}


def _commit(file: Path) -> str:
    """Return the commit a file is of, with "+changes" where its folder differs from it."""
    # A package may be installed in a checkout of something else.
    tracked = _git(file.parent, "ls-files", "--error-unmatch", file.name)
    commit = tracked and _git(file.parent, "rev-parse", "HEAD")
    if not commit:
        return "not a git checkout"
    changes = _git(file.parent, "--no-optional-locks", "status", "--porcelain", ".")
    return f"{commit}+changes" if changes else commit


def _git(folder: Path, *arguments: str) -> str:
    """Return what git says in a folder; nothing where it fails or there is no git."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _keep_final(trainer: Trainer, folder: RunFolder) -> None:
    """Save model and tokenizer; they are in their place whole.

    The last step's checkpoint stays only where the run asks for checkpoints.
    """
    part = folder.path / ".final"
    is_first = trainer.is_world_process_zero()
    with cleared(part, f"the final model, {folder.final},") if is_first else nullcontext():
        trainer.accelerator.wait_for_everyone()
        trainer.save_model(str(part))
        trainer.accelerator.wait_for_everyone()
        if is_first:
            write_model_card(part, trainer.run, folder, trainer.model)
            os.replace(part, folder.final)
    if is_first and not trainer.run.save_every:
        folder.discard(trainer.run.max_steps)
