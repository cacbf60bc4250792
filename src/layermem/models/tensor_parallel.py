"""Which rules of tensor parallelism a model gets, by how many processes share it.

Where their number divides the key-value heads, and the variant has rules for that, each process
attends with heads of its own. Elsewhere the heads are gathered before the seams.
"""

import re
from typing import TYPE_CHECKING, Any

import transformers
from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES

from layermem.models.configuration import LOCAL_HEADS, DecoderConfig

if TYPE_CHECKING:
    from layermem.models.pretrained import PreTrainedDecoder


def share_layers(model: "PreTrainedDecoder", sizes: Any) -> None:
    """Give a model the rules for its layers that ``sizes.tp_size`` processes can follow.

    ``sizes`` is transformers' ``DistributedConfig``.
    """
    version = tuple(map(int, transformers.__version__.split(".")[:2]))
    if sizes.tp_size > 1 and sizes.fsdp_size > 1 and version < (5, 19):
        # It would shard by tp_size alone, and the processes would wait for each other for ever.
        raise ValueError(
            f"tp_size={sizes.tp_size} together with fsdp_size={sizes.fsdp_size} is not supported "
            f"by transformers {transformers.__version__}; use 5.19 or newer"
        )
    if sizes.tp_size > 1:
        _set_rules(model, sizes.tp_size)


def share_weights(model: "PreTrainedDecoder", mesh: Any) -> None:
    """Have the processes of a mesh share a model that each of them holds whole, in place.

    A vocabulary that their number does not divide stays whole in each.
    """
    degree = mesh.size()
    _set_rules(model, degree)
    vocabulary = {model.get_input_embeddings(), model.get_output_embeddings()}
    for name, module in model.named_modules():
        rule = model.tp_plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))
        if rule is None or (module in vocabulary and model.config.vocab_size % degree):
            continue
        for parameter, _ in list(module.named_parameters(recurse=False)):
            ALL_PARALLEL_STYLES[rule].shard_param(module, parameter, mesh)
        ALL_PARALLEL_STYLES[rule].install_forward(module, mesh)
    model.tie_weights()
    model._tp_size = degree


def shares_heads(config: DecoderConfig, variant: Any, degree: int) -> bool:
    """Return whether each of ``degree`` processes attends with key-value heads of its own."""
    return LOCAL_HEADS.items() <= _rules(config, variant, degree).items()


def _rules(config: DecoderConfig, variant: Any, degree: int) -> dict[str, str]:
    if config.num_key_value_heads % degree or variant.inputs_by_head(config):
        return dict(DecoderConfig.base_model_tp_plan)
    return {**config.base_model_tp_plan, **config.local_heads_tp_plan}


def _set_rules(model: "PreTrainedDecoder", degree: int) -> None:
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    plan = {name: rule for name, rule in model.tp_plan.items() if ".layers." not in f".{name}"}
    rules = _rules(model.config, model.variant, degree)
    model.tp_plan = {**plan, **{prefix + name: rule for name, rule in rules.items()}}
