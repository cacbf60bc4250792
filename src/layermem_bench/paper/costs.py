"""Costs at the sizes of the paper's models: Tables 8 (counted) and 9 (measured)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from layermem_bench.config.computing import Mode
from layermem_bench.costs.closed_forms import count_cost
from layermem_bench.costs.measuring import Measurement, Shape, device_and_precision, measure
from layermem_bench.costs.model_sizes import model_fields, model_sizes
from layermem_bench.paper.artefact import Artefact, Observing, claims_of_lime
from layermem_bench.paper.evaluated import ARMS
from layermem_bench.paper.trained import full_attention, grouped_queries
from layermem_bench.studies.definition import Board, Observed
from layermem_bench.studies.result import ABOVE_PLAIN, Claim, PaperNumber, Scale

# Each half of a table, and the board whose runs have its sizes.
_HALVES: Mapping[str, Callable[[Scale], Board]]
_HALVES = {"grouped queries": grouped_queries, "full attention": full_attention}


def _numbers(
    where: str, quantities: Sequence[str], printed: Mapping[tuple[str, str], Sequence[float]]
) -> tuple[PaperNumber, ...]:
    """Return the numbers of a table by its part and arm, of LLaMA without those above its own."""
    return tuple(
        PaperNumber(
            quantity=f"{quantity}, {part}",
            arm=arm,
            value=value,
            where=where,
            is_share=quantity.endswith(ABOVE_PLAIN),
        )
        for (part, arm), values in printed.items()
        for quantity, value in zip(quantities, values, strict=False)
    )


def _observe(
    part: str, arm: str, values: Mapping[str, Mapping[int, float]], *, counted: bool = False
) -> Iterator[Observed]:
    for quantity, by_seed in values.items():
        is_share = quantity.endswith(ABOVE_PLAIN)
        name = f"{quantity}, {part}"
        yield Observed(quantity=name, arm=arm, by_seed=by_seed, is_share=is_share, counted=counted)


# Table 8: parameters and FLOPs as printed, and by which share they exceed LLaMA's.
_COUNTED = {
    ("grouped queries", "plain"): (1.07607e9, 2.7615e12),
    ("grouped queries", "lime"): (1.07608e9, 2.7638e12, 0.0, 0.0008),
    ("grouped queries", "hyper_connections"): (1.07640e9, 2.7701e12, 0.0003, 0.0031),
    ("full attention", "plain"): (1.17674e9, 2.9679e12),
    ("full attention", "lime"): (1.17687e9, 3.0041e12, 0.0001, 0.0122),
    ("full attention", "hyper_connections"): (1.17706e9, 2.9764e12, 0.0003, 0.0029),
}
_COUNTS = ("parameters", "forward FLOPs", f"parameters{ABOVE_PLAIN}", f"forward FLOPs{ABOVE_PLAIN}")


def _table8(trained: Observing) -> Iterator[Observed]:
    for half, board in _HALVES.items():
        run = board(trained.scale).base
        counted = {arm: count_cost(arm, replace(run, variant=arm)) for arm in ARMS}
        for arm, cost in counted.items():
            ours, plain = (
                (each.parameters, each.forward_in_paper) for each in (cost, counted["plain"])
            )
            values = (*ours, *(a / b - 1 for a, b in zip(ours, plain, strict=True)))
            by_quantity = {what: {0: value} for what, value in zip(_COUNTS, values, strict=True)}
            yield from _observe(half, arm, by_quantity, counted=True)


# Table 9: milliseconds and GB as printed, and by which share they exceed LLaMA's.
_MEASURED = {
    ("grouped queries, reduce-overhead", "plain"): (65.770, 16.035),
    ("grouped queries, reduce-overhead", "lime"): (66.533, 16.035, 0.0116, 0.0),
    ("grouped queries, reduce-overhead", "hyper_connections"): (81.003, 16.040, 0.2316, 0.0003),
    ("grouped queries, default", "plain"): (66.404, 20.489),
    ("grouped queries, default", "lime"): (67.449, 20.490, 0.0157, 0.0),
    ("grouped queries, default", "hyper_connections"): (83.265, 21.693, 0.2539, 0.0588),
    ("full attention, reduce-overhead", "plain"): (69.776, 17.535),
    ("full attention, reduce-overhead", "lime"): (77.093, 17.537, 0.1049, 0.0001),
    ("full attention, reduce-overhead", "hyper_connections"): (84.990, 17.540, 0.2180, 0.0003),
    ("full attention, default", "plain"): (70.258, 22.364),
    ("full attention, default", "lime"): (77.607, 22.367, 0.1046, 0.0001),
    ("full attention, default", "hyper_connections"): (86.314, 23.007, 0.2285, 0.0287),
}
_COMPILED: tuple[Mode, ...] = ("reduce-overhead", "default")
_MODES: dict[Scale, tuple[Mode, ...]]
_MODES = {"tiny": ("eager",), "small": _COMPILED, "paper": _COMPILED}
_MORE_TIME, _MORE_MEMORY = f"time{ABOVE_PLAIN}", f"peak memory{ABOVE_PLAIN}"
_SECONDS, _PEAK = "seconds of a step", "peak bytes"
_BATCH, _REPEATS = 4, 9


def _step(step: Measurement, plain: Measurement) -> Iterator[tuple[str, float]]:
    """Yield what a step took, and by which share that exceeds the plain decoder's."""
    yield _SECONDS, step.seconds
    yield _MORE_TIME, step.seconds / plain.seconds - 1
    # Some systems do not say what the peak was.
    if step.peak is not None and plain.peak:
        yield _PEAK, step.peak
        yield _MORE_MEMORY, step.peak / plain.peak - 1


def _table9(trained: Observing) -> Iterator[Observed]:
    device, precision = device_and_precision()
    for half, board in _HALVES.items():
        run = board(trained.scale).base
        fields, tokens = model_fields(run), round(model_sizes(run)[1])
        models = {arm: (arm, fields) for arm in ARMS}
        shape = Shape(batch=_BATCH, tokens=tokens, device=device, precision=precision)
        for mode in _MODES[trained.scale]:
            at_mode = replace(shape, mode=mode)
            steps = {repeat: measure(models, at_mode, _REPEATS) for repeat in trained.seeds}
            for arm in ARMS:
                values: dict[str, dict[int, float]] = {}
                for repeat, of_arms in steps.items():
                    for what, value in _step(of_arms[arm], of_arms["plain"]):
                        values.setdefault(what, {})[repeat] = value
                yield from _observe(f"{half}, {mode}", arm, values)


def _table9_claims(scale: Scale) -> Iterator[Claim]:
    """Yield what is claimed of LIMe relative to another arm, which any machine can judge."""
    for half in _HALVES:
        for mode in _MODES[scale]:
            time, memory = (f"{what}, {half}, {mode}" for what in (_MORE_TIME, _MORE_MEMORY))
            yield from claims_of_lime(lower=[time], against="hyper_connections")
            yield from claims_of_lime(similar=[memory])
            yield from claims_of_lime(lower=[memory], against="hyper_connections")


ARTEFACTS = {
    "table8": Artefact(
        title="Parameters and forward FLOPs, 1B",
        claim="LIMe has +0.00% parameters and +0.08% FLOPs with grouped queries, +0.01% and +1.22% "
        "with full attention.",
        observe=_table8,
        numbers=_numbers("Table 8", _COUNTS, _COUNTED),
        claims=lambda scale: tuple(
            Claim(quantity=f"{what}, {half}", arm="lime", against=None, direction="equal")
            for half in _HALVES
            for what in _COUNTS[2:]
        ),
        notes=(
            "FLOPs are in the paper's counting: one for a multiply-add of linear layers and "
            "routers, two for one of attention, to all keys. `layermem costs` has both countings.",
            "Hyper-Connections as implemented here come to other figures than in the paper; "
            "nothing is claimed of them.",
        ),
    ),
    "table9": Artefact(
        title="Time and peak memory of a training step, 1B",
        claim="LIMe takes 1.16% to 1.57% more time with grouped queries, 10.5% with full "
        "attention, and no more memory, far less than Hyper-Connections.",
        observe=_table9,
        numbers=_numbers(
            "Table 9",
            (_SECONDS, _PEAK, _MORE_TIME, _MORE_MEMORY),
            {
                part_and_arm: (round(milliseconds / 1e3, 9), round(gigabytes * 1e9), *above)
                for part_and_arm, (milliseconds, gigabytes, *above) in _MEASURED.items()
            },
        ),
        claims=_table9_claims,
        needs={"small": "a GPU", "paper": "a GPU, the paper's an H100"},
        notes=(
            "Seeds are repeats of the whole measurement, each with all arms in turn in one "
            "process.",
            "What LIMe adds to a step's time depends on machine, sizes and compiler: it is shown, "
            "and judged beside Hyper-Connections alone.",
            "The paper does not say its batch: 4 sequences are assumed.",
            "Memory without LIMe's concatenation of slots is a property of the compiler and of the "
            "implementation; scale tiny is eager.",
        ),
    ),
}
