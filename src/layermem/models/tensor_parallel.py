"""Which rules of tensor parallelism a model gets, by how many processes share it.

Where their number divides the key-value heads, and the variant has rules for that, each process
attends with heads of its own. Elsewhere the heads are gathered before the seams.
"""

from typing import TYPE_CHECKING, Any

import transformers

from layermem.models.configuration import DecoderConfig

if TYPE_CHECKING:
    from layermem.models.pretrained import PreTrainedDecoder


def share_layers(model: "PreTrainedDecoder", sizes: Any, mesh: Any = None) -> None:
    """Give a model the rules for its layers that ``sizes.tp_size`` processes can follow.

    ``sizes`` is transformers' ``DistributedConfig`` and ``mesh`` what it made of that.
    """
    degree, config = sizes.tp_size, model.config
    if degree == 1:
        return
    if sizes.fsdp_size > 1 and _has_tensor_parallelism_alone(mesh):
        raise ValueError(
            f"tp_size={degree} together with fsdp_size={sizes.fsdp_size} is not supported by "
            f"transformers {transformers.__version__}, which would shard by tp_size alone; use "
            "5.19 or newer"
        )
    rules = dict(DecoderConfig.base_model_tp_plan)
    if config.num_key_value_heads % degree == 0 and not model.variant.inputs_by_head(config):
        rules = {**config.base_model_tp_plan, **config.local_heads_tp_plan}
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    plan = {name: rule for name, rule in model.tp_plan.items() if ".layers." not in f".{name}"}
    model.tp_plan = {**plan, **{prefix + name: rule for name, rule in rules.items()}}


def _has_tensor_parallelism_alone(mesh: Any) -> bool:
    """Whether this is the mesh of older transformers, of torch's type and with one dimension."""
    from torch.distributed.device_mesh import DeviceMesh

    return isinstance(mesh, DeviceMesh) and mesh.ndim == 1
