"""Open the checkpoints of a command, and refuse two that cannot be compared token by token.

Opening reads a config and a tokenizer; weights are read by ``load_model``, after all other checks.

It does not know: texts, words, what is computed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from layermem.config import Run
from layermem.runs import RunFolder, unique_names
from layermem.train.run_config import recorded_run


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose weights are not loaded yet."""

    name: str
    """Its name in the result: the end of its path, as long as needed to differ from the other's."""
    location: Path | str
    """Folder of the saved model, or its name on the hub."""
    tokenizer: Any
    """Its tokenizer."""
    run: Run | None
    """The run that trained it; None: it is no run's."""
    folder: RunFolder | None = None
    """Folder of that run."""


def open_checkpoints(paths: Sequence[str], *, one_vocabulary: bool = True) -> list[Checkpoint]:
    """Open checkpoints; no weights are read.

    With ``one_vocabulary``, two that have different vocabularies are refused.
    """
    # A path that does not exist is a name on the hub.
    parts = [Path(path).resolve().parts if Path(path).exists() else (path,) for path in paths]
    if len(set(parts)) < len(parts):
        raise ValueError(f"{' and '.join(paths)} are one checkpoint; give different ones")
    names = unique_names(parts)
    checkpoints = [_open_checkpoint(path, name) for path, name in zip(paths, names, strict=True)]
    if one_vocabulary and len(checkpoints) == 2:
        _check_same_vocabulary(*checkpoints)
    return checkpoints


def load_model(checkpoint: Checkpoint, *, with_head: bool = False) -> Any:
    """Load the model in float32, to a GPU if there is one; raise if it lacks any weights.

    Without ``with_head`` the head may be missing: nothing is predicted.
    """
    with _explain_missing_model(checkpoint.location):
        model, loading = AutoModelForCausalLM.from_pretrained(
            checkpoint.location, dtype=torch.float32, output_loading_info=True
        )
    # Any other missing weight would be measured at its random start.
    prefix = "" if with_head else f"{model.base_model_prefix}."
    if missing := sorted(name for name in loading["missing_keys"] if name.startswith(prefix)):
        raise ValueError(
            f"{checkpoint.location} lacks {len(missing)} of the model's weights, such as "
            f"{missing[0]}: it is damaged, or of another architecture than its config.json says; "
            "save it again"
        )
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def check_same_tokens(first: Checkpoint, second: Checkpoint, texts: Sequence[str]) -> None:
    """Raise if one vocabulary is used in two ways, so that words are at different tokens."""
    for text in texts:
        first_ids, second_ids = (
            checkpoint.tokenizer(text, add_special_tokens=False)["input_ids"]
            for checkpoint in (first, second)
        )
        if first_ids != second_ids:
            raise ValueError(
                f"the tokenizers of {first.name} and {second.name} have the same vocabulary, but "
                "split the same text into different tokens, so the models cannot be compared token "
                "by token; analyze them one at a time"
            )


def _open_checkpoint(path: str, name: str) -> Checkpoint:
    """Open the final model of a run, a saved model, or a model on the hub."""
    folder = RunFolder(path)
    is_run = folder.config.exists()
    if is_run and not folder.final.exists():
        raise ValueError(
            f"{path} is a run that has not ended; let it end, or name one of its checkpoints"
        )
    if Path(path).is_absolute() and not Path(path).exists():
        raise FileNotFoundError(f"{path} does not exist")
    location = folder.final if is_run else path
    with _explain_missing_model(path):
        AutoConfig.from_pretrained(location)
    return Checkpoint(
        name=name,
        location=location,
        tokenizer=_load_tokenizer(location),
        run=recorded_run(folder) if is_run else None,
        folder=folder if is_run else None,
    )


def _load_tokenizer(location: Path | str) -> Any:
    """Return the tokenizer of a checkpoint; raise if there is none."""
    mend = "save the one that it was trained with beside it (tokenizer.save_pretrained)"
    try:
        tokenizer = AutoTokenizer.from_pretrained(location)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"the model {location} has no tokenizer ({reason}); {mend}") from error
    # Of some families transformers makes one without words where there are no files.
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise ValueError(f"the model {location} has no tokenizer; {mend}")
    return tokenizer


@contextmanager
def _explain_missing_model(path: Path | str) -> Iterator[None]:
    """Turn what transformers raises about a model that it cannot find into a plain sentence."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no model at {path}: expected a run folder, a saved model, or a name on the hub that "
            f"can be reached ({error})"
        ) from error


def _check_same_vocabulary(first: Checkpoint, second: Checkpoint) -> None:
    if first.tokenizer.get_vocab() != second.tokenizer.get_vocab():
        raise ValueError(
            f"{first.name} and {second.name} have different tokenizers, so the models cannot be "
            "compared token by token; analyze them one at a time"
        )
