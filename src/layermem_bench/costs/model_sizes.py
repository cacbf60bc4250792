"""Sizes of a run's model, without building it or downloading anything; other depths and widths."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from layermem_bench.config.run import Run
from layermem_bench.tasks.registry import vocabulary_and_length
from layermem_bench.text.tokenizers import BYTE_VOCABULARY_SIZE, load_tokenizer

_GPT2_VOCABULARY = 50257


def model_sizes(run: Run) -> tuple[dict[str, Any], float]:
    """Return a run's sizes as config fields, with its vocabulary, and mean tokens of a sequence.

    Nothing is downloaded: a tokenizer that is not on this machine is taken to be GPT-2's size
    (``unknown_size``).
    """
    fields, length = run.model.sizes(), float(run.data.block_size)
    name = _tokenizer(run)
    folder = name and _on_this_machine(name)
    if run.task.name and name is None:
        vocabulary, length = vocabulary_and_length(run.task)
    elif name == "bytes" and not run.task.name:
        vocabulary = BYTE_VOCABULARY_SIZE
    elif name == "bytes" or folder:
        tokenizer = load_tokenizer(str(folder or name))
        vocabulary = len(tokenizer)
        if run.task.name:
            vocabulary, length = vocabulary_and_length(run.task, tokenizer)
    else:
        vocabulary = _GPT2_VOCABULARY
    fields["vocab_size"] = fields["vocab_size"] or vocabulary
    if run.model.pretrained and folder:
        fields |= _saved_sizes(run.variant, fields, folder / "config.json")
    return fields, length


def model_fields(run: Run) -> dict[str, Any]:
    """Return the config fields of a run's model: its sizes and its variant's own."""
    return model_sizes(run)[0] | run.model.variant_fields()


def runs_of_arms(base: Run, arms: Mapping[str, tuple[str, tuple[str, ...]]]) -> dict[str, Run]:
    """Return the run of each arm of a variant and options, which may be other sizes."""
    runs = {}
    for arm, (variant, options) in arms.items():
        model = replace(base.model, options=(*base.model.options, *options))
        runs[arm] = replace(base, variant=variant, model=model)
    return runs


def trained_fields(run: Run, final: Path) -> dict[str, Any] | None:
    """Return the config fields of the model of a run of ours, which is saved in ``final``.

    None: it is not, and what it starts from, or its tokenizer, is not on this machine.
    """
    fields, _ = model_sizes(run)
    # What it started from, or its tokenizer, may have decided the sizes.
    saved = _saved_sizes(run.variant, fields, final / "config.json")
    if not saved and unknown_size(run):
        return None
    return fields | saved | run.model.variant_fields()


def unknown_size(run: Run) -> str | None:
    """Return the name on the hub of a tokenizer or model whose sizes are not known here."""
    name = _tokenizer(run)
    known = name is None or name == "bytes" or _on_this_machine(name)
    return None if known or run.model.vocab_size and not run.model.pretrained else name


def _tokenizer(run: Run) -> str | None:
    """Return where a run's tokenizer is from, its pretrained model's before any other."""
    return run.model.pretrained or (run.task.tokenizer if run.task.name else run.data.tokenizer)


def _on_this_machine(name: str) -> Path | None:
    """Return the folder of a saved tokenizer or model, or of one from the hub that was fetched."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    # Read without huggingface_hub, which takes a while to import.
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()
    folder = cache / f"models--{name.replace('/', '--')}"
    revision = folder / "refs" / "main"
    if not revision.is_file():
        return None
    snapshot = folder / "snapshots" / revision.read_text(encoding="utf-8").strip()
    files = (snapshot / "config.json", snapshot / "tokenizer.json")
    return snapshot if any(file.exists() for file in files) else None


def _saved_sizes(variant: str, fields: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return what a saved config says of sizes, and of what the variant reads across layers."""
    if not file.exists():
        return {}
    # Only here: the sizes of a new model need neither torch nor transformers.
    from layermem.models.registry import lookup

    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    names = (*fields, *lookup(variant).config.shape_fields(), "attention_bias", "mlp_bias")
    return {name: saved[name] for name in names if name in saved}


def reshaped(run: Run, layers: int | None = None, width: int | None = None) -> Run:
    """Return a run at another depth or width: heads keep their width, the mlp its ratio."""
    model, changed = run.model, dict[str, Any]()
    if layers is not None:
        changed["num_hidden_layers"] = layers
    if width is not None:
        old, heads = model.hidden_size, model.num_attention_heads
        kv_heads = model.num_key_value_heads
        groups = kv_heads or heads
        if width * heads % old or width * groups % old:
            raise ValueError(
                f"width {width} is no whole number of heads of width {old // heads} in groups of "
                f"{heads // groups}; take a multiple of {old // groups}"
            )
        changed |= {
            "hidden_size": width,
            "intermediate_size": model.intermediate_size * width // old,
            "num_attention_heads": width * heads // old,
            # None: as many as there are query heads, which stays so.
            "num_key_value_heads": kv_heads and width * kv_heads // old,
        }
    return replace(run, model=replace(model, **changed))
