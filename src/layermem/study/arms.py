"""Arms of variants by their names: a variant, with options of its own after colons.

plain,lime,lime:router=last:router_window=4
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from layermem.config import Model, Run
from layermem.models.registry import BUILT_WITH, check_names, lookup, variants
from layermem.study.definition import Arm
from layermem.train.setup import adds_parameters, check_options, check_router_lr


def parse_arms(names: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return variant and options of each arm in ``plain,lime,lime:router_init=identity``.

    A comma within brackets belongs to an option: ``lime:router_sources=[[],[0]]``. ``all`` stands
    for every variant, the plain decoder first. An option that the variant has no field for is
    refused here, before any arm is trained.
    """
    arms: dict[str, tuple[str, tuple[str, ...]]] = {}
    depth, arm = 0, ""
    for letter in f"{names},":
        depth += (letter in "[{") - (letter in "]}")
        if letter != "," or depth:
            arm += letter
            continue
        if arm.strip() in arms:
            raise ValueError(f"{arm.strip()} is named twice in {names!r}: name an arm once")
        variant, *options = arm.strip().split(":")
        if variant == "all" and not options:
            arms |= {name: (name, ()) for name in dict.fromkeys(("plain", *variants()))}
        else:
            fields = Model(options=tuple(options)).variant_fields()
            check_names(lookup(variant), fields.keys() - BUILT_WITH)
            arms[arm.strip()] = variant, tuple(options)
        arm = ""
    if depth:
        raise ValueError(f"a bracket is open or closed too often in {names!r}")
    return arms


def arms_of_variants(names: str | Sequence[str], base: Run) -> tuple[Arm, ...]:
    """Return arms for a board of these runs; refuse one that cannot be built at its sizes.

    ``optim.router_lr`` is left out of arms that add no parameters, and refused if none does.
    """
    text = names if isinstance(names, str) else ",".join(names)
    runs = {
        name: _as_variant(base, variant, options, router_lr=True)
        for name, (variant, options) in parse_arms(text).items()
    }
    for name, run in runs.items():
        # The sizes of a saved model are not the run's own.
        if run.model.pretrained is None:
            try:
                check_options(run.variant, run.model)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
    takes = {name: _takes_router_lr(run) for name, run in runs.items()}
    if not any(takes.values()):
        for run in runs.values():
            check_router_lr(run)
    return tuple(
        Arm(
            name=name,
            change=partial(_as_variant, variant=variant, options=options, router_lr=takes[name]),
        )
        for name, (variant, options) in parse_arms(text).items()
    )


def _as_variant(run: Run, variant: str, options: tuple[str, ...], router_lr: bool) -> Run:
    model = replace(run.model, options=(*run.model.options, *options))
    optim = run.optim if router_lr else replace(run.optim, router_lr=None)
    return replace(run, variant=variant, model=model, optim=optim)


def _takes_router_lr(run: Run) -> bool:
    of_ours = run.optim.router_lr is not None and run.model.pretrained is None
    return not of_ours or adds_parameters(run.variant, run.model)
