"""Which rules of tensor parallelism a model gets, by how many processes share it.

Where their number divides the key-value heads, and the variant has rules for that, each process
attends with heads of its own. Elsewhere the heads are gathered before the seams.
"""

from typing import TYPE_CHECKING, Any

import transformers

from layermem.models.configuration import DecoderConfig

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


def _rules(config: DecoderConfig, variant: Any, degree: int) -> dict[str, str]:
    if config.num_key_value_heads % degree or variant.inputs_by_head(config):
        return dict(DecoderConfig.base_model_tp_plan)
    return {**config.base_model_tp_plan, **config.local_heads_tp_plan}


def _set_rules(model: "PreTrainedDecoder", degree: int) -> None:
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    plan = {name: rule for name, rule in model.tp_plan.items() if ".layers." not in f".{name}"}
    rules = _rules(model.config, model.variant, degree)
    model.tp_plan = {**plan, **{prefix + name: rule for name, rule in rules.items()}}
