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
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from layermem_bench.config.computing import Device, choose_loss_chunk, sequences_at_once
from layermem_bench.config.counting import count_linear_weights, count_parameters
from layermem_bench.config.run import Run
from layermem_bench.costs.closed_forms import count_handed_on, forward_flops
from layermem_bench.costs.model_sizes import model_fields, model_sizes

# Shares of a device's memory that tensors can have, and of a link's peak that rings reach.
_USABLE, _REACHED = 0.9, 0.8
_GPUS_OF_A_MACHINE = 8
RATIOS = {("lime", 12, 768): 1.25}
"""Time of a compiled step in bfloat16, over the plain decoder's, as measured on an H200
(benchmarks/results/nvidia-h200_one_group.json): by variant, layers and width."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one arm takes; times are of a step, in seconds."""

    parameters: int
    tokens_at_once: int
    """Tokens of a micro-batch of one device."""
    micro_batches: int
    memory: Mapping[str, float]
    """Bytes of one device, by what they are for."""
    fits: bool
    """Whether they are within the usable part of the device's memory."""
    arithmetic: float
    network: float
    measured_ratio: float | None
    """Of a compiled step, over plain's; None: it was not measured at this size."""
    step: float
    """The longer of both."""
    seconds: float
    """Of all training steps, without validation and checkpoints."""


def plan(run: Run, device: Device, gpus: int, utilisation: float) -> Plan:
    """Return what a run takes on as many devices, whose peak arithmetic reaches by this share."""
    from layermem.models.registry import lookup

    fields, tokens = model_fields(run), round(model_sizes(run)[1])
    entry, compute, batch = lookup(run.variant), run.compute, run.optim.batch_size
    config = entry.config(**fields)
    at_once = sequences_at_once(run, gpus) * tokens
    micro_batches = batch * tokens // (at_once * gpus)
    extra = entry.variant.extra_saved(config)
    if extra is None:
        # Beside the residual stream, which the plain decoder hands on too.
        handed_on = count_handed_on(entry, fields) - config.hidden_size
        extra = max(0, handed_on) * config.num_hidden_layers
    memory = _memory(config, entry.variant, run, at_once, gpus, extra)
    measured = run.variant, config.num_hidden_layers, config.hidden_size
    ratio = None if run.model.options else RATIOS.get(measured)
    flops = 3 * forward_flops(config, None if ratio else entry.variant, tokens) * (ratio or 1)
    again = 4 / 3 if compute.checkpoint_activations else 1
    peak = device.float32_flops if compute.precision == "float32" else device.flops
    arithmetic = batch * again * flops / (gpus * utilisation * peak)
    link = device.link
    if gpus > _GPUS_OF_A_MACHINE:
        # Each device of a machine sums its share of DDP's gradients with those of other machines.
        link = min(link, device.network * (1 if compute.shard else _GPUS_OF_A_MACHINE))
    network = _traffic(config, entry.variant, run, gpus, micro_batches) / (_REACHED * link)
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
        step=step,
        seconds=run.max_steps * step,
    )


def _memory(
    config: Any, variant: Any, run: Run, tokens: int, gpus: int, extra: int
) -> dict[str, float]:
    compute, layers, width = run.compute, config.num_hidden_layers, config.hidden_size
    sharded, half = compute.shard and gpus > 1, compute.precision != "float32"
    bytes_of_number = 2 if half else 4
    parameters, linear = count_parameters(config, variant), count_linear_weights(config)
    embeddings = config.vocab_size * width
    own = parameters / (gpus if sharded else 1)
    communication = 4.0 * parameters * (gpus > 1)
    if sharded:
        root = embeddings * (1 if config.tie_word_embeddings else 2)
        communication = 8 * root + 2 * (bytes_of_number + 4) * linear / layers
    heads = 2 * (config.num_attention_heads + config.num_key_value_heads) * config.head_dim
    # Under autocast query, key, value, gate and up each have a copy of their input.
    of_layer = (5 if half else 2) * width + 4 * config.intermediate_size + heads
    of_layer = bytes_of_number * of_layer + 4 * (config.num_attention_heads + 2 + 2 * width)
    again = compute.checkpoint_activations
    kept = of_layer + 4 * layers * width if again else layers * of_layer
    # Autocast copies the weights.
    copies = half * bytes_of_number * (linear * (not sharded) + embeddings)
    chunk = choose_loss_chunk(compute.loss_chunk, tokens, config.vocab_size)
    logits = 12.0 * tokens * config.vocab_size
    if chunk:
        logits = 4 * (tokens + 2 * config.vocab_size) * width
        logits += min(chunk, tokens) * config.vocab_size * (4 + half * bytes_of_number)
    return {
        "weights": 4 * own,
        "gradients": 4 * own,
        "optimiser": 8 * own,
        "communication": communication,
        "activations": float(kept * tokens + copies),
        "slots": float(bytes_of_number * extra * tokens),
        "logits and loss": logits,
    }


def _traffic(config: Any, variant: Any, run: Run, gpus: int, micro_batches: int) -> float:
    """Return the bytes that each device sends in a step, in rings over all devices."""
    parameters, linear = count_parameters(config, variant), count_linear_weights(config)
    share = (gpus - 1) / gpus
    if not run.compute.shard:
        return share * 2 * 4 * parameters
    # What belongs to no layer, and norms, are gathered once, in float32.
    bytes_of_number = 2 if run.compute.precision != "float32" else 4
    gathered = 4 * (parameters - linear) + 2 * bytes_of_number * linear
    return share * micro_batches * (gathered + 4 * parameters)
