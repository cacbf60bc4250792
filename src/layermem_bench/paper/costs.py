"""Costs at the sizes of the paper's models: Tables 8 (counted) and 9 (measured)."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from layermem_bench.config.computing import Mode
from layermem_bench.config.run import Run
from layermem_bench.costs.closed_forms import count_cost
from layermem_bench.costs.measuring import Measurement, Shape, device_and_precision, measure
from layermem_bench.costs.model_sizes import model_fields, model_sizes
from layermem_bench.paper.artefact import Artefact, full_attention, grouped_queries, lime_is
from layermem_bench.paper.evaluated import ARMS
from layermem_bench.studies.definition import Observed, Trained
from layermem_bench.studies.result import ABOVE_PLAIN, Claim, PaperNumber, Scale


def _halves(scale: Scale) -> dict[str, Run]:
    """Return each half of a table: a run of its sizes."""
    boards = {"grouped queries": grouped_queries(scale), "full attention": full_attention(scale)}
    return {half: board.base for half, board in boards.items()}


def _papers(
    where: str, quantities: Sequence[str], printed: Mapping[tuple[str, str], Sequence[float]]
) -> tuple[PaperNumber, ...]:
    """Return the numbers of a table by its part and arm, of LLaMA without those above its own."""
    return tuple(
        PaperNumber(
            quantity=f"{quantity}, {part}",
            arm=arm,
            value=value,
            where=where,
            is_share=ABOVE_PLAIN in quantity,
        )
        for (part, arm), values in printed.items()
        for quantity, value in zip(quantities, values, strict=False)
    )


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


def table8(scale: Scale) -> Artefact:
    """Parameters and forward FLOPs, 1B."""
    halves = _halves(scale)

    def observe(trained: Trained) -> Iterator[Observed]:
        for half, run in halves.items():
            costs = {arm: count_cost(arm, replace(run, variant=arm)) for arm in ARMS}
            counted = {arm: (each.parameters, each.forward_in_paper) for arm, each in costs.items()}
            for arm, ours in counted.items():
                above = (a / b - 1 for a, b in zip(ours, counted["plain"], strict=True))
                values = (*ours, *above)
                for quantity, value in zip(_COUNTS, values, strict=True):
                    yield Observed(
                        quantity=f"{quantity}, {half}",
                        arm=arm,
                        by_seed={0: value},
                        is_share=ABOVE_PLAIN in quantity,
                        counted=True,
                    )

    return Artefact(
        claim="LIMe has +0.00% parameters and +0.08% FLOPs with grouped queries, +0.01% and +1.22% "
        "with full attention.",
        observe=observe,
        papers=_papers("Table 8", _COUNTS, _COUNTED),
        claims=lime_is(
            "equal", *(f"{more}, {half}" for half in halves for more in _COUNTS[2:]), against=None
        ),
        notes=(
            "FLOPs are in the paper's counting: one for a multiply-add of linear layers and "
            "routers, two for one of attention, to all keys. `layermem costs` has both countings.",
            "Hyper-Connections as implemented here come to other figures than in the paper; "
            "nothing is claimed of them.",
        ),
    )


# Table 9: seconds and bytes as printed, and by which share they exceed LLaMA's.
_MEASURED = {
    ("grouped queries, reduce-overhead", "plain"): (0.065770, 16.035e9),
    ("grouped queries, reduce-overhead", "lime"): (0.066533, 16.035e9, 0.0116, 0.0),
    ("grouped queries, reduce-overhead", "hyper_connections"): (0.081003, 16.040e9, 0.2316, 0.0003),
    ("grouped queries, default", "plain"): (0.066404, 20.489e9),
    ("grouped queries, default", "lime"): (0.067449, 20.490e9, 0.0157, 0.0),
    ("grouped queries, default", "hyper_connections"): (0.083265, 21.693e9, 0.2539, 0.0588),
    ("full attention, reduce-overhead", "plain"): (0.069776, 17.535e9),
    ("full attention, reduce-overhead", "lime"): (0.077093, 17.537e9, 0.1049, 0.0001),
    ("full attention, reduce-overhead", "hyper_connections"): (0.084990, 17.540e9, 0.2180, 0.0003),
    ("full attention, default", "plain"): (0.070258, 22.364e9),
    ("full attention, default", "lime"): (0.077607, 22.367e9, 0.1046, 0.0001),
    ("full attention, default", "hyper_connections"): (0.086314, 23.007e9, 0.2285, 0.0287),
}
_COMPILED: tuple[Mode, ...] = ("reduce-overhead", "default")
_MODES: dict[Scale, tuple[Mode, ...]]
_MODES = {"tiny": ("eager",), "small": _COMPILED, "paper": _COMPILED}
_SECONDS, _PEAK = "seconds of a step", "peak bytes"
_MORE_TIME, _MORE_MEMORY = f"time{ABOVE_PLAIN}", f"peak memory{ABOVE_PLAIN}"
_BATCH, _REPEATS = 4, 9


def _took(
    part: str, arm: str, steps: Mapping[int, Mapping[str, Measurement]]
) -> Iterator[Observed]:
    """Yield what a step took by repeat, and by which share that exceeds the plain decoder's."""
    values = defaultdict[str, dict[int, float]](dict)
    for repeat, of_arms in steps.items():
        ours, plain = of_arms[arm], of_arms["plain"]
        values[_SECONDS][repeat] = ours.seconds
        values[_MORE_TIME][repeat] = ours.seconds / plain.seconds - 1
        # Some systems do not say what the peak was.
        if ours.peak is not None and plain.peak:
            values[_PEAK][repeat] = ours.peak
            values[_MORE_MEMORY][repeat] = ours.peak / plain.peak - 1
    for quantity, by_repeat in values.items():
        is_share, name = ABOVE_PLAIN in quantity, f"{quantity}, {part}"
        yield Observed(quantity=name, arm=arm, by_seed=by_repeat, is_share=is_share)


def table9(scale: Scale) -> Artefact:
    """Time and peak memory of a training step, 1B."""
    halves, modes = _halves(scale), _MODES[scale]

    def observe(trained: Trained) -> Iterator[Observed]:
        device, precision = device_and_precision()
        for half, run in halves.items():
            fields, tokens = model_fields(run), round(model_sizes(run)[1])
            models = {arm: (arm, fields) for arm in ARMS}
            shape = Shape(batch=_BATCH, tokens=tokens, device=device, precision=precision)
            for mode in modes:
                at_mode = replace(shape, mode=mode)
                steps = {repeat: measure(models, at_mode, _REPEATS) for repeat in trained.seeds}
                for arm in ARMS:
                    yield from _took(f"{half}, {mode}", arm, steps)

    def claims() -> Iterator[Claim]:
        """Yield what is claimed of LIMe relative to another arm, which any machine can judge."""
        for part in (f"{half}, {mode}" for half in halves for mode in modes):
            time, memory = (f"{more}, {part}" for more in (_MORE_TIME, _MORE_MEMORY))
            yield from lime_is("lower", time, against="hyper_connections")
            yield from lime_is("similar", memory)
            yield from lime_is("lower", memory, against="hyper_connections")

    needs = {"tiny": "", "small": "a GPU", "paper": "a GPU, the paper's an H100"}
    return Artefact(
        claim="LIMe takes 1.16% to 1.57% more time with grouped queries, 10.5% with full "
        "attention, and no more memory, far less than Hyper-Connections.",
        observe=observe,
        papers=_papers("Table 9", (_SECONDS, _PEAK, _MORE_TIME, _MORE_MEMORY), _MEASURED),
        claims=tuple(claims()),
        needs=needs[scale],
        notes=(
            "Seeds are repeats of the whole measurement, each with all arms in turn in one "
            "process.",
            "What LIMe adds to a step's time depends on machine, sizes and compiler: it is shown, "
            "and judged beside Hyper-Connections alone.",
            "The paper does not say its batch: 4 sequences are assumed.",
            "Memory without LIMe's concatenation of slots is a property of the compiler and of the "
            "implementation; scale tiny is eager.",
        ),
    )


ARTEFACTS = (table8, table9)
