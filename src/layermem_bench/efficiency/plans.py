"""What it would take to train a run on some devices, in closed form: memory, time, GPU-hours.

A step takes at least what its arithmetic, its traffic to memory, and its traffic between devices
take, each by itself; the largest of the three bounds it, as if they overlapped fully. Assumptions:

    compute     the FLOPs of ``costs`` at a share of the device's peak that the user states; layers
                that are computed again take a forward more
    memory      AdamW reads and writes 28 bytes a parameter; a micro-batch reads the weights three
                times and adds up gradients; what is kept for the backward is written and read, and
                so are its gradients
    network     rings over the processes that share parameters, and over those that hold the same,
                as fast as a device's link, or, beyond one machine, as its network where that is
                slower. Float32 gradients are summed over copies of the model once a step; FSDP2
                gathers weights twice and scatters float32 gradients at each micro-batch, unless
                they are kept whole
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from layermem_bench.config.counting import Additions, Sizes, count_linear_weights, count_parameters
from layermem_bench.config.devices import Device
from layermem_bench.config.micro_batches import choose_loss_chunk, sequences_at_once
from layermem_bench.config.run import Run
from layermem_bench.efficiency.costs import cost
from layermem_bench.efficiency.memory import Step, count_root, step_memory
from layermem_bench.efficiency.model_sizes import model_sizes

USABLE = 0.9
"""Share of a device's memory that tensors can have; the rest is for kernels and fragments."""
REACHED = 0.8
"""Share of the peak of memory, links and network that transfers reach."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The devices that a run would have."""

    device: Device
    gpus: int
    per_machine: int = 8
    utilisation: float = 0.4
    """Share of the device's peak FLOPs that arithmetic reaches."""

    def link(self, devices: int, rings: int = 1) -> float:
        """Bytes a second that each device sends, in one direction, in a ring over so many, where
        so many rings leave each machine at once."""
        if devices <= self.per_machine:
            return self.device.link
        return min(self.device.link, self.per_machine * self.device.network / rings)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run takes on a cluster."""

    run: Run
    cluster: Cluster
    step: Step
    parameters: int
    memory: Mapping[str, float]
    """Bytes of one device at the peak, by what they are for."""
    seconds: Mapping[str, float]
    """Seconds that a step takes at least, by what bounds it."""

    @property
    def peak(self) -> float:
        """Bytes of one device at the peak."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """Whether the peak is within the usable part of a device's memory."""
        return self.peak <= USABLE * self.cluster.device.memory

    @property
    def bound(self) -> str:
        """What bounds a step."""
        return max(self.seconds, key=lambda name: self.seconds[name])

    @property
    def step_seconds(self) -> float:
        """Seconds of a step."""
        return self.seconds[self.bound]

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second, of all devices."""
        return self.run.optim.batch_size * self.step.tokens / self.step_seconds

    @property
    def total_seconds(self) -> float:
        """Seconds of all training steps, without validation and checkpoints."""
        return self.run.max_steps * self.step_seconds

    @property
    def gpu_hours(self) -> float:
        """Hours of all devices."""
        return self.cluster.gpus * self.total_seconds / 3600


def plan_run(run: Run, fields: Mapping[str, Any], cluster: Cluster) -> Plan:
    """Return what a run takes; ``fields`` are those of its model's config, but for its sizes."""
    from layermem.models.registry import lookup

    check_counted(run)
    sizes, length = model_sizes(run)
    entry = lookup(run.variant)
    config = entry.config(**{**sizes, **fields})
    step = _step_of(run, cluster, round(length), config.vocab_size)
    return Plan(
        run=run,
        cluster=cluster,
        step=step,
        parameters=cost(config, entry.variant, step.tokens).parameters,
        memory=step_memory(config, entry.variant, step),
        seconds={
            "compute": _compute_seconds(config, entry.variant, step, cluster),
            "memory": _memory_seconds(config, entry.variant, step, cluster),
            "network": _network_seconds(config, entry.variant, step, cluster),
        },
    )


def check_counted(run: Run) -> None:
    """Raise where a run has what is not counted here."""
    if run.host.model is not None:
        raise ValueError(
            f"host.model={run.host.model!r}: what a model of transformers takes is not counted in "
            "closed form; take a preset without --host"
        )
    if run.compute.checkpoint_every > 1:
        raise ValueError(
            f"compute.checkpoint_every={run.compute.checkpoint_every}: activations that some "
            "layers keep are not counted in closed form; leave it 1"
        )


def _step_of(run: Run, cluster: Cluster, tokens: int, vocabulary: int) -> Step:
    compute = run.compute
    sequences = sequences_at_once(run, cluster.gpus)
    return Step(
        sequences=sequences,
        tokens=tokens,
        micro_batches=run.optim.batch_size // (sequences * cluster.gpus),
        processes=cluster.gpus,
        # Every device of the table computes in bfloat16, which "auto" then takes.
        half=compute.precision != "float32",
        checkpointed=compute.checkpoint_activations,
        loss_chunk=choose_loss_chunk(compute.loss_chunk, sequences * tokens, vocabulary),
        shard=compute.shard,
    )


def step_flops(config: Sizes, variant: Additions | None, step: Step) -> float:
    """Return the FLOPs of one process in a step; those of a layer computed again count."""
    counted = cost(config, variant, step.tokens)
    # The head is in no layer, and a layer's last product is not needed again.
    last = config.num_hidden_layers * config.intermediate_size
    left_out = 2 * (config.vocab_size + last) * config.hidden_size * step.tokens
    again = (counted.forward - left_out) * step.checkpointed
    return step.micro_batches * step.sequences * (counted.training + again)


def _compute_seconds(
    config: Sizes, variant: Additions | None, step: Step, cluster: Cluster
) -> float:
    if not step.half:
        raise ValueError(
            "compute.precision=float32: the peaks of devices are those of bfloat16; take "
            "--precision bfloat16"
        )
    return step_flops(config, variant, step) / (cluster.utilisation * cluster.device.flops)


def _memory_seconds(
    config: Sizes, variant: Additions | None, step: Step, cluster: Cluster
) -> float:
    parameters = cost(config, variant, step.tokens).parameters
    held = step_memory(config, variant, replace(step, checkpointed=False))
    passing = held["activations"] + held["slots"] + held["logits and loss"]
    of_micro_batch = 4 * passing + (3 * step.width + 12) * parameters
    total = step.micro_batches * of_micro_batch + 28 * parameters / step.shards
    return total / (REACHED * cluster.device.bandwidth)


def _network_seconds(
    config: Sizes, variant: Additions | None, step: Step, cluster: Cluster
) -> float:
    among_shards = shard_traffic(config, variant, step) / cluster.link(step.shards)
    # Each device sums what it holds with those that hold the same: a ring for each on a machine.
    rings = min(step.shards, cluster.per_machine)
    among_copies = copy_traffic(config, variant, step) / cluster.link(cluster.gpus, rings)
    return (among_shards + among_copies) / REACHED


def copy_traffic(config: Sizes, variant: Additions | None, step: Step) -> float:
    """Return the bytes that each process sends in a step to sum gradients over copies of the model,
    in a ring over those that hold the same parameters."""
    gradients = 4 * cost(config, variant, step.tokens).parameters / step.shards
    copies = step.processes // step.shards
    return 2 * (copies - 1) / copies * gradients


def shard_traffic(config: Sizes, variant: Additions | None, step: Step) -> float:
    """Return the bytes that each process sends in a step to those it shares parameters with."""
    share = (step.shards - 1) / step.shards
    return share * (gathered_bytes(config, variant, step) + scattered_bytes(config, variant, step))


def gathered_bytes(config: Sizes, variant: Additions | None, step: Step) -> float:
    """Return the bytes of all weights that a step gathers from their shards.

    What belongs to no layer is gathered once a forward, in float32, and layers are gathered for the
    backward too. In bfloat16 norms and routers are a unit of their own, gathered once.
    """
    parameters = count_parameters(config, variant)
    linear = count_linear_weights(config)
    of_layers = linear if step.half else parameters - count_root(config)
    once = 4 * (parameters - of_layers) + step.width * of_layers
    if step.keep_whole == "all":
        return once
    return step.micro_batches * (once + step.width * of_layers)


def scattered_bytes(config: Sizes, variant: Additions | None, step: Step) -> float:
    """Return the bytes of all gradients that a step sums and scatters, in float32."""
    times = step.micro_batches if step.keep_whole == "nothing" else 1
    return 4 * times * count_parameters(config, variant)


def mends(plan: Plan, fields: Mapping[str, Any]) -> Iterator[tuple[str, Plan]]:
    """Yield changes of a run with which it fits, the least first, as options and their plan."""
    compute = plan.run.compute
    smaller = {"micro_batch": 1} if plan.step.sequences > 1 else {}
    shard = {"shard": True} if plan.cluster.gpus > 1 and not compute.shard else {}
    again = {} if compute.checkpoint_activations else {"checkpoint_activations": True}
    for sequences in _halves(plan.step.sequences):
        changed = _changed(plan, fields, {"micro_batch": sequences})
        if changed.fits:
            yield _as_options({"micro_batch": sequences}), changed
            break
    tried = (shard, again, shard | again, shard | smaller, again | smaller, shard | again | smaller)
    seen: list[dict[str, Any]] = [{}, smaller]
    for changes in tried:
        if changes in seen:
            continue
        seen.append(changes)
        changed = _changed(plan, fields, changes)
        if changed.fits:
            yield _as_options(changes), changed


def _changed(plan: Plan, fields: Mapping[str, Any], changes: Mapping[str, Any]) -> Plan:
    run = replace(plan.run, compute=replace(plan.run.compute, **changes))
    return plan_run(run, fields, plan.cluster)


def _halves(number: int) -> Iterator[int]:
    while number > 1 and number % 2 == 0:
        number //= 2
        yield number


def _as_options(changes: Mapping[str, Any]) -> str:
    options = []
    for name, value in changes.items():
        option = f"--{name.replace('_', '-')}"
        options.append(option if value is True else f"{option} {value}")
    return " ".join(options)
