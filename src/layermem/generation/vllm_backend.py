"""vLLM's transformers backend, whose layers that borrow keys and values share their lender's cache.

vLLM imports this module in its own processes; nothing else does, because it imports vLLM.
"""

from typing import Any, final

from vllm.model_executor.models.transformers import TransformersForCausalLM

from layermem.models.seams import LentMemory


@final
class SharedCacheForCausalLM(TransformersForCausalLM):
    """The backend, with one cache for a layer and those that attend to what it attends to."""

    def _create_attention_instances(self, prefix: str = "") -> None:
        super()._create_attention_instances(prefix)
        layers: Any = self.model.layers
        for layer in layers:
            # Pipeline parallelism leaves empty places where a layer is another process's.
            attention: Any = getattr(layer, "self_attn", None)
            memory = getattr(attention, "memory", None)
            if not isinstance(memory, LentMemory):
                continue
            lender = getattr(layers[memory.lender], "self_attn", None)
            if lender is None:
                raise ValueError(
                    f"layer {layer.layer_idx} shares the cache of layer {memory.lender}, which "
                    "pipeline parallelism has put into another process; leave "
                    "--pipeline-parallel-size at 1"
                )
            for part in (attention.attn, attention.attn.impl):
                part.kv_sharing_target_layer_name = lender.attn.layer_name
