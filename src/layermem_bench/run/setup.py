"""What a run's config becomes: a tokenizer and a model; and whether it can become them."""

from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from layermem.models.configuration import DecoderConfig
from layermem.models.pretrained import check_path, config_from_llama
from layermem.models.registry import BUILT_WITH, build, check_names, lookup
from layermem_bench.config.run import Model, Run
from layermem_bench.run.host_models import load_host
from layermem_bench.run.optimizer import find_overridden
from layermem_bench.tasks import registry as tasks
from layermem_bench.text.tokenizers import load_tokenizer


def load_run_tokenizer(run: Run) -> Any:
    """Return the tokenizer of the pretrained model, of the task, or of the config."""
    if pretrained := run.model.pretrained or run.host.model:
        check_path(pretrained)
        return load_tokenizer(pretrained, run.host.revision)
    if run.task.name and run.task.tokenizer is None:
        return tasks.get_task(run.task.name).tokenizer(**run.task.fields())
    return load_tokenizer(run.task.tokenizer or run.data.tokenizer)


def build_model(run: Run, tokenizer: Any) -> Any:
    """Return a model of transformers, or a decoder of ours: new, saved, or a LLaMA converted."""
    if run.host.model is not None:
        return load_host(run)
    source, entry = run.model.pretrained, lookup(run.variant)
    if source is None:
        return build(run.variant, **_model_fields(run, tokenizer))
    check_options(run.variant, run.model)
    is_own = AutoConfig.from_pretrained(source).model_type == entry.config.model_type
    load = entry.causal_lm.from_pretrained if is_own else entry.causal_lm.from_llama
    return load(source, dtype=torch.float32, **run.model.variant_fields())


@cache
def check_options(variant: str, model: Model) -> DecoderConfig:
    """Return the config of a new model, but for what the tokenizer says, or of one that starts from
    saved weights; raise unless its options have names, values and sizes that it can have. No model
    is built, nor are data prepared."""
    entry, fields, sizes = lookup(variant), model.variant_fields(), model.sizes()
    check_names(entry, fields.keys() - BUILT_WITH)
    options = {name: value for name, value in fields.items() if name not in BUILT_WITH}
    if repeated := sorted(sizes.keys() & fields):
        raise ValueError(
            f"model.options name {', '.join(repeated)}, which the config has a field for: "
            f"--model.{repeated[0].replace('_', '-')}"
        )
    given = {name: value for name, value in sizes.items() if value is not None}
    try:
        if model.pretrained is None:
            return entry.config(**given | options)
        check_path(model.pretrained)
        saved = AutoConfig.from_pretrained(model.pretrained)
        if saved.model_type != entry.config.model_type:
            return config_from_llama(entry.causal_lm, saved, options)
    except StrictDataclassError as error:
        raise ValueError(str(error.__cause__ or error)) from error
    if options:
        raise ValueError(
            f"{model.pretrained} has its own {', '.join(sorted(options))}; leave --model.options "
            "out"
        )
    return saved


def plain_options(options: Iterable[str]) -> tuple[str, ...]:
    """Return those options, each NAME=VALUE, that a plain decoder has too."""
    names = {field.name for field in fields(lookup("plain").config)} | BUILT_WITH
    return tuple(option for option in options if option.partition("=")[0] in names)


@cache
def adds_parameters(variant: str, model: Model) -> bool:
    """Return whether the variant has optimiser settings for some parameters of a new model."""
    entry = lookup(variant)
    # Without memory for weights.
    with torch.device("meta"):
        built = entry.causal_lm(check_options(variant, model))
    return bool(find_overridden(built, entry.variant.overrides))


def _model_fields(run: Run, tokenizer: Any) -> dict[str, Any]:
    sizes = run.model.sizes()
    if sizes["vocab_size"] is None:
        sizes["vocab_size"] = len(tokenizer)
    elif sizes["vocab_size"] < len(tokenizer):
        raise ValueError(
            f"model.vocab_size ({sizes['vocab_size']}) is smaller than the tokenizer's vocabulary "
            f"({len(tokenizer)}): its ids would lie beyond the embedding"
        )
    end = tokenizer.eos_token_id
    return {
        **sizes,
        "max_position_embeddings": max(2048, run.data.block_size),
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": tokenizer.pad_token_id,
        **run.model.variant_fields(),
    }
