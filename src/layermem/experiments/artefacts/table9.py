"""Table 9: time and peak memory of a training step; it trains nothing.

It does not know: how steps are measured, how claims are judged.
"""

from collections.abc import Iterator

from layermem.experiments.artefacts.table1 import ARMS
from layermem.experiments.artefacts.table8 import HALVES, sizes
from layermem.experiments.reproduction.artefact import (
    Artefact,
    Claim,
    Observed,
    PaperNumber,
    Trained,
    no_studies,
)
from layermem.experiments.reproduction.step_costs import measure_once
from layermem.results.artefact import Scale
from layermem.results.costs import Mode

_MODES: dict[Scale, tuple[Mode, ...]] = {
    "tiny": ("eager",),
    "small": ("reduce-overhead", "default"),
    "paper": ("reduce-overhead", "default"),
}
# Milliseconds and GB as printed, of LLaMA, LIMe and HC.
_PRINTED: dict[tuple[str, Mode], tuple[tuple[float, float], ...]] = {
    (HALVES[0], "reduce-overhead"): ((65.770, 16.035), (66.533, 16.035), (81.003, 16.040)),
    (HALVES[0], "default"): ((66.404, 20.489), (67.449, 20.490), (83.265, 21.693)),
    (HALVES[1], "reduce-overhead"): ((69.776, 17.535), (77.093, 17.537), (84.990, 17.540)),
    (HALVES[1], "default"): ((70.258, 22.364), (77.607, 22.367), (86.314, 23.007)),
}
_ORDER = ("plain", "lime", "hyper_connections")
_BATCH, _REPEATS = 4, 9


def _quantity(what: str, half: str, mode: str) -> str:
    return f"{what}, {half}, {mode}"


def _observe(trained: Trained) -> Iterator[Observed]:
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
                steps = {repeat: of_mode[mode][arm] for repeat, of_mode in measured.items()}
                times = {repeat: step.seconds for repeat, step in steps.items()}
                yield Observed(
                    quantity=_quantity("seconds of a step", half, mode), arm=arm, by_seed=times
                )
                peaks = {repeat: float(s.peak) for repeat, s in steps.items() if s.peak is not None}
                yield Observed(quantity=_quantity("peak bytes", half, mode), arm=arm, by_seed=peaks)


def _claims(scale: Scale) -> tuple[Claim, ...]:
    return tuple(
        Claim(
            quantity=_quantity(what, half, mode),
            arm="lime",
            against="hyper_connections",
            direction="lower",
        )
        for half in HALVES
        for mode in _MODES[scale]
        for what in ("seconds of a step", "peak bytes")
    )


ARTEFACT = Artefact(
    title="Time and peak memory of a training step, 1B",
    claim="LIMe takes 1.16% to 1.57% more time with grouped queries, 10.5% with full attention, "
    "and no more memory, far less than Hyper-Connections.",
    studies=no_studies,
    observe=_observe,
    numbers=tuple(
        PaperNumber(quantity=_quantity(what, half, mode), arm=arm, value=value, where="Table 9")
        for (half, mode), printed in _PRINTED.items()
        for arm, (milliseconds, gigabytes) in zip(_ORDER, printed, strict=True)
        for what, value in (
            ("seconds of a step", round(milliseconds / 1e3, 9)),
            ("peak bytes", round(gigabytes * 1e9)),
        )
    ),
    claims=_claims,
    needs={"small": "a GPU", "paper": "a GPU, the paper's an H100"},
    on_gpu=("small", "paper"),
    notes=(
        "Seeds are repeats of the whole measurement, each with all arms in turn in one process.",
        "The paper does not say its batch: 4 sequences are assumed.",
        "Memory without LIMe's concatenation of slots is a property of the compiler and of the "
        "implementation; scale tiny is eager.",
    ),
)
