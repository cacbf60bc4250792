"""What a run's config becomes: a tokenizer and a model; and whether it can become them.

A model of transformers has layer memory attached, or as a control LoRA on its projections to keys
and values.
"""

from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from layermem.models.configuration import DecoderConfig
from layermem.models.hub import find_commit, set_commit
from layermem.models.pretrained import check_path, config_from_llama, naming_source
from layermem.models.registry import BUILT_WITH, build, check_names, lookup
from layermem.retrofit import attach, loading, trainable
from layermem.retrofit.attachment import DEFAULTS, has_memory
from layermem.retrofit.hosts import find_host, measure
from layermem_bench.config.hashing import digest, file_digest
from layermem_bench.config.run import Model, Run
from layermem_bench.run.optimizer import find_overridden
from layermem_bench.run.trained_models import check_causal
from layermem_bench.tasks import registry as tasks
from layermem_bench.text.tokenizers import load_tokenizer

# The fields of ``Host`` that an argument of ``attach`` has another name for.
_OPTIONS = {"router": "memory"}


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
        values, end = run.model.sizes() | run.model.variant_fields(), tokenizer.eos_token_id
        values["vocab_size"] = values["vocab_size"] or len(tokenizer)
        places = max(2048, run.data.block_size)
        ids = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": tokenizer.pad_token_id}
        return build(run.variant, **{"max_position_embeddings": places, **ids, **values})
    check_options(run.variant, run.model)
    is_own = AutoConfig.from_pretrained(source).model_type == entry.config.model_type
    load = entry.causal_lm.from_pretrained if is_own else entry.causal_lm.from_llama
    return load(source, dtype=torch.float32, **run.model.variant_fields())


@cache
def check_options(variant: str, model: Model) -> DecoderConfig:
    """Return the config of a new model, but for what the tokenizer says, or of one that starts from
    saved weights; raise unless its options have names, values and sizes that it can have. No model
    is built, nor are data prepared."""
    entry, fields = lookup(variant), model.variant_fields()
    check_names(entry, fields.keys() - BUILT_WITH)
    options = {name: value for name, value in fields.items() if name not in BUILT_WITH}
    if repeated := sorted(model.sizes().keys() & fields):
        raise ValueError(f"model.options names {repeated[0]}, which is an option of its own")
    given = {name: value for name, value in model.sizes().items() if value is not None}
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


def weights_digest(source: str | None, revision: str | None = None) -> str | None:
    """Return twelve hexadecimal digits that identify the weights in a folder, or the commit of a
    model on the hub; None: there is no model, or its commit cannot be found."""
    if source is None:
        return None
    if not Path(source).is_dir():
        return find_commit(source, revision=revision)
    files = [path for path in Path(source).iterdir() if path.suffix in (".safetensors", ".bin")]
    return digest([[path.name, file_digest(path)] for path in sorted(files)])


def load_host(run: Run) -> Any:
    """Return the model of a run on text or a task, in float32, with the parameters it trains."""
    host, location = run.host, str(run.host.model)
    check_path(location)
    asked = {name: getattr(host, _OPTIONS.get(name, name)) for name in DEFAULTS}
    if loading.is_attached(location):
        saved = {**DEFAULTS, **loading.saved_memory(location)}
        if other := [_OPTIONS.get(n, n) for n, value in asked.items() if saved[n] != value]:
            raise ValueError(
                f"{location} has another memory than the run asks for (host.{other[0]}): ask for "
                "its own, or start from a model without memory"
            )
        model: Any = loading.load_attached(location, dtype=torch.float32)
    else:
        commit = find_commit(location, revision=host.revision)
        with naming_source(location):
            model = AutoModelForCausalLM.from_pretrained(
                location, dtype=torch.float32, revision=commit or host.revision or "main"
            )
        set_commit(model.config, commit)
        # That of a folder is compared with what the run asks for.
        if has_memory(model):
            raise ValueError(f"{location} has layer memory: download it, and name the folder")
        if host.memory != "none":
            attach(model, **asked)
    check_causal(model)
    if host.train == "lora":
        _add_lora(model)
    elif host.memory == "none":
        model.requires_grad_(True)
    else:
        trainable(model, "all" if host.train == "all" else "routers")
    return model


def _add_lora(model: nn.Module) -> None:
    """Put LoRA on the projections to keys and values, of the smallest rank that has as many
    parameters as routers would have, and train it alone."""
    from peft import LoraConfig, inject_adapter_in_model

    owner, host = find_host(model)
    attentions, shape = measure(model, owner, host)
    modules: list[Any] = [
        each.get_submodule(name) for each in attentions for name in host.projections
    ]
    routers = sum(shape.heads**2 * (i + 1) for i in range(1, len(attentions)))
    rank = -(-routers // sum(sum(module.weight.shape) for module in modules))
    config = LoraConfig(
        r=rank,
        # The scale is 1 whatever the rank is.
        lora_alpha=rank,
        lora_dropout=0.0,
        target_modules=[name for name, module in model.named_modules() if module in modules],
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in modules),
    )
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    inject_adapter_in_model(config, model)


def merge_lora(model: nn.Module) -> None:
    """Merge LoRA into the weights that it is on, and remove it."""
    from peft.tuners.lora import LoraLayer

    layers = [(name, each) for name, each in model.named_modules() if isinstance(each, LoraLayer)]
    for name, layer in layers:
        layer.merge()
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer.get_base_layer())
    for parameter in model.parameters():
        parameter.requires_grad_(True)
