"""What it would take to train a preset on some devices, in closed form; nothing is measured here.

    memory of a device, as eager PyTorch allocates it, all parts at once
        weights, gradients, optimiser   16 bytes a parameter; FSDP2 divides them over the devices
        communication                   DDP's buckets; what FSDP2 gathers: root, two layers
        activations                     what autograd keeps of norms, projections, mlp, attention,
                                        or of each layer's input alone, if layers are computed again
        slots                           what layers keep of, or hand on to, others beside the stream
        logits and loss                 of all tokens, or of a chunk
    time of a step, the larger of
        arithmetic      FLOPs at a share of the device's peak, a third more if layers are computed
                        again; where a compiled step was measured, plain's times that ratio
        network         a ring over the devices: gradients once a step (DDP), or weights twice and
                        gradients at each micro-batch (FSDP2)

Letters: P parameters, D width, H query heads, G key-value heads, E head width, F width inside the
mlp, V vocabulary, L layers, w bytes of a number that is computed with.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from layermem_bench.config.computing import choose_loss_chunk, sequences_at_once
from layermem_bench.config.counting import count_linear_weights, count_parameters
from layermem_bench.config.devices import Device
from layermem_bench.config.run import Run
from layermem_bench.costs.closed_forms import cost
from layermem_bench.costs.model_sizes import model_sizes
from layermem_bench.costs.variant_facts import count_handed_on

# Shares of a device's memory that tensors can have, and of a link's peak that rings reach.
_USABLE, _REACHED = 0.9, 0.8
_GPUS_OF_A_MACHINE = 8
RATIOS = {("lime", 12, 768): 1.25}
"""Time of a compiled step in bfloat16, over the plain decoder's, as measured on an H200
(benchmarks/results/nvidia-h200_one_group.json): by variant, layers and width."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one arm takes."""

    parameters: int
    tokens_at_once: int
    """Tokens of a micro-batch of one device."""
    micro_batches: int
    memory: Mapping[str, float]
    """Bytes of one device, by what they are for."""
    fits: bool
    """Whether they are within the usable part of the device's memory."""
    arithmetic: float
    """Seconds of a step."""
    network: float
    """Seconds of a step."""
    measured_ratio: float | None
    """Of a compiled step, over plain's; None: it was not measured at this size."""
    tokens_per_second: float
    seconds: float
    """Of all training steps, without validation and checkpoints."""


def plan(
    run: Run, fields: Mapping[str, Any], device: Device, gpus: int, utilisation: float
) -> Plan:
    """Return what a run takes; ``fields`` are those of its model's config, but for its sizes."""
    from layermem.models.registry import lookup

    sizes, length = model_sizes(run)
    entry, compute, tokens = lookup(run.variant), run.compute, round(length)
    config = entry.config(**{**sizes, **fields})
    at_once = sequences_at_once(run, gpus) * tokens
    micro_batches = run.optim.batch_size * tokens // (at_once * gpus)
    extra = entry.variant.extra_saved(config)
    if extra is None:
        # Beside the residual stream, which the plain decoder hands on too.
        handed_on = count_handed_on(entry, {**sizes, **fields}) - config.hidden_size
        extra = max(0, handed_on) * config.num_hidden_layers
    memory = _memory(config, entry.variant, run, at_once, gpus, extra)
    measured = run.variant, config.num_hidden_layers, config.hidden_size
    ratio = None if fields else RATIOS.get(measured)
    flops = cost(config, None if ratio else entry.variant, tokens).training * (ratio or 1)
    again = 4 / 3 if compute.checkpoint_activations else 1
    arithmetic = run.optim.batch_size * again * flops / (gpus * utilisation * device.flops)
    network = _traffic(config, entry.variant, run, gpus, micro_batches) / (_REACHED * device.link)
    if gpus > _GPUS_OF_A_MACHINE and not compute.shard:
        # Each device of a machine sums its share of the gradients with those of other machines.
        network *= device.link / min(device.link, _GPUS_OF_A_MACHINE * device.network)
    elif gpus > _GPUS_OF_A_MACHINE:
        network *= device.link / min(device.link, device.network)
    step = max(arithmetic, network)
    return Plan(
        parameters=count_parameters(config, entry.variant),
        tokens_at_once=at_once,
        micro_batches=micro_batches,
        memory=memory,
        fits=sum(memory.values()) <= _USABLE * device.memory,
        arithmetic=arithmetic,
        network=network,
        measured_ratio=ratio,
        tokens_per_second=run.optim.batch_size * tokens / step,
        seconds=run.max_steps * step,
    )


def _memory(
    config: Any, variant: Any, run: Run, tokens: int, gpus: int, extra: int
) -> dict[str, float]:
    compute, layers, width = run.compute, config.num_hidden_layers, config.hidden_size
    half = compute.precision != "float32"
    w = 2 if half else 4
    parameters, linear = count_parameters(config, variant), count_linear_weights(config)
    root = (1 if config.tie_word_embeddings else 2) * config.vocab_size * width
    own = parameters / (gpus if compute.shard else 1)
    communication = 4.0 * parameters * (gpus > 1)
    if compute.shard and gpus > 1:
        communication = 8 * root + 2 * (w + 4) * linear / layers
    heads = 2 * (config.num_attention_heads + config.num_key_value_heads) * config.head_dim
    # Under autocast query, key, value, gate and up each have a copy of their input.
    of_layer = w * ((5 if half else 2) * width + 4 * config.intermediate_size + heads)
    of_layer += 4 * (config.num_attention_heads + 2 + 2 * width)
    kept = (
        of_layer + 4 * layers * width if compute.checkpoint_activations else layers * of_layer
    ) * tokens
    # Autocast copies the weights.
    copies = half * w * (linear * (not (compute.shard and gpus > 1)) + config.vocab_size * width)
    chunk = choose_loss_chunk(compute.loss_chunk, tokens, config.vocab_size)
    logits = 12.0 * tokens * config.vocab_size
    if chunk:
        logits = 4 * (tokens + 2 * config.vocab_size) * width
        logits += min(chunk, tokens) * config.vocab_size * (4 + half * w)
    return {
        "weights": 4 * own,
        "gradients": 4 * own,
        "optimiser": 8 * own,
        "communication": communication,
        "activations": float(kept + copies),
        "slots": float(w * extra * tokens),
        "logits and loss": logits,
    }


def _traffic(config: Any, variant: Any, run: Run, gpus: int, micro_batches: int) -> float:
    """Return the bytes that each device sends in a step, in rings over all devices."""
    parameters, linear = count_parameters(config, variant), count_linear_weights(config)
    share = (gpus - 1) / gpus
    if not run.compute.shard:
        return share * 2 * 4 * parameters
    w = 2 if run.compute.precision != "float32" else 4
    # What belongs to no layer, and norms, are gathered once, in float32.
    gathered = 4 * (parameters - linear) + 2 * w * linear
    return share * micro_batches * (gathered + 4 * parameters)
