"""Table 9: time and peak memory of a training step; it trains nothing."""

from collections.abc import Iterator

from layermem.paper.artefact import Artefact, Observing, no_boards
from layermem.paper.step_costs import measure_once
from layermem.paper.table1 import ARMS
from layermem.paper.table8 import HALVES, sizes
from layermem.results.costs import Measurement, Mode
from layermem.results.study import Claim, PaperNumber, Scale
from layermem.study.definition import Observed

_MODES: dict[Scale, tuple[Mode, ...]] = {
    "tiny": ("eager",),
    "small": ("reduce-overhead", "default"),
    "paper": ("reduce-overhead", "default"),
}
# Milliseconds and GB as printed, and by which share they exceed LLaMA's.
_PRINTED: dict[tuple[str, Mode], dict[str, tuple[float, ...]]] = {
    (HALVES[0], "reduce-overhead"): {
        "plain": (65.770, 16.035),
        "lime": (66.533, 16.035, 0.0116, 0.0),
        "hyper_connections": (81.003, 16.040, 0.2316, 0.0003),
    },
    (HALVES[0], "default"): {
        "plain": (66.404, 20.489),
        "lime": (67.449, 20.490, 0.0157, 0.0),
        "hyper_connections": (83.265, 21.693, 0.2539, 0.0588),
    },
    (HALVES[1], "reduce-overhead"): {
        "plain": (69.776, 17.535),
        "lime": (77.093, 17.537, 0.1049, 0.0001),
        "hyper_connections": (84.990, 17.540, 0.2180, 0.0003),
    },
    (HALVES[1], "default"): {
        "plain": (70.258, 22.364),
        "lime": (77.607, 22.367, 0.1046, 0.0001),
        "hyper_connections": (86.314, 23.007, 0.2285, 0.0287),
    },
}
_SECONDS, _PEAK = "seconds of a step", "peak bytes"
_MORE_TIME, _MORE_MEMORY = "time above plain", "peak memory above plain"
_BATCH, _REPEATS = 4, 9


def _quantity(what: str, half: str, mode: str) -> str:
    return f"{what}, {half}, {mode}"


def _costs(step: Measurement, plain: Measurement) -> Iterator[tuple[str, bool, float]]:
    """Yield what a step took, and by which share that exceeds the plain decoder's: name, whether it
    is a share, number."""
    yield _SECONDS, False, step.seconds
    yield _MORE_TIME, True, step.seconds / plain.seconds - 1
    # Some systems do not say what the peak was.
    if step.peak is not None and plain.peak:
        yield _PEAK, False, step.peak
        yield _MORE_MEMORY, True, step.peak / plain.peak - 1


def _observe(trained: Observing) -> Iterator[Observed]:
    modes = _MODES[trained.scale]
    for half in HALVES:
        run = sizes(trained.scale, half)
        measured = {
            repeat: measure_once(
                run,
                ARMS,
                modes,
                _BATCH,
                _REPEATS,
                trained.out / "measured" / f"{half.replace(' ', '-')}-{repeat}.json",
            )
            for repeat in trained.seeds
        }
        for mode in modes:
            for arm in ARMS:
                by_quantity: dict[tuple[str, bool], dict[int, float]] = {}
                for repeat, of_mode in measured.items():
                    for what, is_share, value in _costs(of_mode[mode][arm], of_mode[mode]["plain"]):
                        by_quantity.setdefault((what, is_share), {})[repeat] = value
                for (what, is_share), values in by_quantity.items():
                    quantity = _quantity(what, half, mode)
                    yield Observed(quantity=quantity, arm=arm, by_seed=values, is_share=is_share)


def _claims(scale: Scale) -> tuple[Claim, ...]:
    """Return what is claimed of LIMe relative to the plain decoder, which any machine can judge."""
    claims = []
    for half in HALVES:
        for mode in _MODES[scale]:
            time, memory = (_quantity(what, half, mode) for what in (_MORE_TIME, _MORE_MEMORY))
            claims += [
                Claim(quantity=time, arm="lime", against="hyper_connections", direction="lower"),
                Claim(quantity=memory, arm="lime", direction="similar"),
                Claim(quantity=memory, arm="lime", against="hyper_connections", direction="lower"),
            ]
    return tuple(claims)


def _numbers() -> Iterator[PaperNumber]:
    for (half, mode), by_arm in _PRINTED.items():
        for arm, (milliseconds, gigabytes, *above) in by_arm.items():
            values = (round(milliseconds / 1e3, 9), round(gigabytes * 1e9), *above)
            # Nothing is printed above LLaMA's of LLaMA itself.
            quantities = (_SECONDS, _PEAK, _MORE_TIME, _MORE_MEMORY)[: len(values)]
            for what, value in zip(quantities, values, strict=True):
                yield PaperNumber(
                    quantity=_quantity(what, half, mode),
                    arm=arm,
                    value=value,
                    where="Table 9",
                    is_share=what in (_MORE_TIME, _MORE_MEMORY),
                )


ARTEFACT = Artefact(
    title="Time and peak memory of a training step, 1B",
    claim="LIMe takes 1.16% to 1.57% more time with grouped queries, 10.5% with full attention, "
    "and no more memory, far less than Hyper-Connections.",
    boards=no_boards,
    observe=_observe,
    numbers=tuple(_numbers()),
    claims=_claims,
    needs={"small": "a GPU", "paper": "a GPU, the paper's an H100"},
    on_gpu=("small", "paper"),
    notes=(
        "Seeds are repeats of the whole measurement, each with all arms in turn in one process.",
        "What LIMe adds to a step's time depends on machine, sizes and compiler: it is shown, and "
        "judged beside Hyper-Connections alone.",
        "The paper does not say its batch: 4 sequences are assumed.",
        "Memory without LIMe's concatenation of slots is a property of the compiler and of the "
        "implementation; scale tiny is eager.",
    ),
)
