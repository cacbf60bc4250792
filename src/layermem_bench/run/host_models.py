"""Models of transformers that a run goes on training: loaded, attached, with what they train.

The control without memory is LoRA on the projections to keys and values.
"""

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from layermem.models.hub import find_commit, set_commit
from layermem.models.pretrained import check_path, naming_source
from layermem.retrofit import attach, loading, trainable
from layermem.retrofit.attachment import DEFAULTS, has_memory
from layermem.retrofit.hosts import find_host, measure
from layermem_bench.config.run import Host, Run
from layermem_bench.run.trained_models import check_causal

# The fields of ``Host`` that an argument of ``attach`` has another name for.
_OPTIONS = {"router": "memory"}


def load_host(run: Run) -> Any:
    """Return the model of a run on text or a task, in float32, with the parameters it trains."""
    host, location = run.host, str(run.host.model)
    check_path(location)
    config = AutoConfig.from_pretrained(location, revision=host.revision or "main")
    # That of an attached model has its host's.
    config = getattr(config, "host", config)
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    tokens = run.data.block_size if run.task.name is None else 0
    if isinstance(positions, int) and tokens > positions:
        raise ValueError(
            f"data.block_size={tokens} is more than {location} reads, {positions} tokens "
            "(max_position_embeddings): lower it"
        )
    if loading.is_attached(location):
        _check_same_memory(location, host)
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
            attach(model, **_asked(host))
    check_causal(model)
    _check_loss(model)
    _choose_trained(model, host)
    return model


@torch.no_grad()
def _check_loss(model: Any) -> None:
    """Raise if a model's own loss is that of the tokens it is given, not of those that follow."""
    ids = torch.arange(7, device=model.device)[None] % model.config.get_text_config().vocab_size
    was_training = model.training
    out = model.eval()(input_ids=ids, labels=ids)
    model.train(was_training)
    copied = nn.functional.cross_entropy(out.logits[0].float(), ids[0])
    if torch.isclose(out.loss.float(), copied, rtol=1e-4, atol=0):
        raise ValueError(
            f"the loss of {type(model).__name__} is that of the tokens it is given: trained by it, "
            "a model learns to copy its input. Name a decoder whose loss is of the next token"
        )


def _choose_trained(model: Any, host: Host) -> None:
    """Let the parameters of a model train that its run trains."""
    if host.train == "lora":
        _add_lora(model)
    elif host.memory == "none":
        model.requires_grad_(True)
    else:
        trainable(model, "all" if host.train == "all" else "routers")


def _check_same_memory(location: str, host: Host) -> None:
    """Raise if a checkpoint with memory has another than its run asks for."""
    saved, asked = ({**DEFAULTS, **each} for each in (loading.saved_memory(location), _asked(host)))
    if other := [name for name in DEFAULTS if saved[name] != asked[name]]:
        own, wanted = (
            " ".join(f"{_OPTIONS.get(name, name)}={each[name]}" for name in other)
            for each in (saved, asked)
        )
        raise ValueError(
            f"{location} has {own}, and the run asks for {wanted}: ask for its own, or "
            "start from a model without memory"
        )


def _asked(host: Host) -> dict[str, Any]:
    """Return the arguments of ``attach`` for the memory that a run asks for."""
    return {name: getattr(host, _OPTIONS.get(name, name)) for name in DEFAULTS}


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
