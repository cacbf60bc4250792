"""Continue the prompts of a run, batch by batch, into rows or a file that can be gone on with."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers

import layermem
from layermem.serving.continuations import Continuation
from layermem.serving.generation import TextGenerator
from layermem.serving.output_file import OutputFile, Row
from layermem.serving.prompts import Prompt, digest
from layermem.serving.settings import GenerationSettings

_MODEL_FILES = ("*.json", "*.safetensors", "*.bin", "*.jinja")


def describe(
    location: Path | str,
    prompts: Sequence[Prompt],
    settings: GenerationSettings,
    dtype: str,
    commit: str | None = None,
) -> dict[str, Any]:
    """Return what the rows of a run are of; two runs may be one if it is equal.

    ``commit``: that of a model on the hub, which has no files here.
    """
    model = {"location": _resolved(location), "files": _file_states(location), "dtype": dtype}
    return {
        "model": model if commit is None else {**model, "commit": commit},
        "prompts": {"count": len(prompts), "sha256": digest(prompts)},
        "settings": asdict(settings),
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "layermem": layermem.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def continue_all(
    generator: TextGenerator,
    batches: Sequence[Sequence[Prompt]],
    *,
    output: OutputFile | None = None,
    pending: Sequence[int] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Row]:
    """Return the rows of all prompts in their order; with an ``output``, write them to it.

    ``pending``: the batches, by number, still to be done; None: all. ``progress`` is called with
    the number of prompts of each batch.
    """
    rows: dict[int, Row] = dict(output.rows) if output is not None else {}
    for number in range(len(batches)) if pending is None else pending:
        batch = batches[number]
        try:
            done = generator.continue_batch(batch)
        except torch.OutOfMemoryError as error:
            raise RuntimeError(
                f"{len(batch)} prompts at once do not fit in memory; lower --batch-size, now "
                f"{generator.settings.batch_size} ({str(error).splitlines()[0]})"
            ) from error
        new = [row_of(prompt, text) for prompt, text in zip(batch, done, strict=True)]
        if output is not None:
            output.append(new)
        rows.update({row["index"]: row for row in new})
        if progress is not None:
            progress(len(batch))
    if output is not None:
        output.finish()
    return [rows[index] for index in sorted(rows)]


def row_of(prompt: Prompt, continuation: Continuation) -> Row:
    """Return what is written of a prompt."""
    return {
        "index": prompt.index,
        "prompt": prompt.content,
        "completion": continuation.text,
        "prompt_tokens": len(prompt.ids),
        "new_tokens": continuation.tokens,
        "finish_reason": continuation.reason,
    }


def _resolved(location: Path | str) -> str:
    return str(Path(location).resolve()) if Path(location).is_dir() else str(location)


def _file_states(location: Path | str) -> dict[str, list[int]]:
    """Return size and time of change of each file of a saved model; of the hub there are none."""
    folder = Path(location)
    if not folder.is_dir():
        return {}
    paths = sorted({path for pattern in _MODEL_FILES for path in folder.glob(pattern)})
    return {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in paths}
