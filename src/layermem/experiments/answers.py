"""Answers of models to tasks as files, one for each model, task and seed, kept for the next start.

    OUT/answers/arc_easy-0-0c6f52a1b9de4a5c.json      task, seed, digest of all they depend on

A file is used only if its whole key is the one asked for: other weights, records, shots, limits or
versions are other files.

It does not know: how a task is answered.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from layermem.evals.lm_eval_definitions import digest
from layermem.experiments.analyze_checkpoints import Checkpoint
from layermem.results.eval import AnswersKey, TaskAnswers
from layermem.results.files import from_json, to_json
from layermem.runs import write_atomically

# Beside the weights, what decides about the answers: config, tokenizer, generation settings.
_KINDS = {".safetensors", ".bin", ".pt", ".json", ".model", ".txt", ".jinja", ".tiktoken"}


def checkpoint_digest(checkpoint: Checkpoint, config: Any) -> str:
    """Return a digest of a saved model's files, or name and revision of a model on the hub."""
    folder = Path(checkpoint.location)
    if not folder.is_dir():
        return f"{checkpoint.location}@{getattr(config, '_commit_hash', None)}"
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in _KINDS:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            total.update(f"{path.name} {content}\n".encode())
    return total.hexdigest()


def read_answers(folder: Path, key: AnswersKey) -> TaskAnswers | None:
    """Return the answers of a key, or None if there are none yet."""
    path = _path(folder, key)
    if not path.exists():
        return None
    answers = from_json(TaskAnswers, path.read_text(encoding="utf-8"), str(path))
    return answers if answers.key == key else None


def write_answers(folder: Path, answers: TaskAnswers) -> None:
    """Write answers to the file of their key."""
    write_atomically(_path(folder, answers.key), to_json(answers))


def _path(folder: Path, key: AnswersKey) -> Path:
    name = digest(json.dumps(asdict(key), sort_keys=True))[:16]
    return folder / f"{key.task}-{key.seed}-{name}.json"
