"""The recipe of layer memory as an arm, and the study of which memory is the best one.

Boards are TEXT-LAYERSxWIDTH-STEPS, `quiet-lm` at another width and length, and `tiny-aet-4`.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from layermem_bench.config.named import merged
from layermem_bench.studies.definition import Board

RECIPE = {"router_shares_kv": "false", "router_init": "value_residual", "router_grain": "layer"}
"""``layermem.RECIPE`` as options of an arm."""
RECIPE_ARM = "recipe"
VARIANTS = {RECIPE_ARM: "lime", f"{RECIPE_ARM}_half": "lime_half"}
"""Names of arms, and the variants that they stand for with these options."""
ARMS = (
    *("plain", "lime", f"{RECIPE_ARM}:router_grain=pair", RECIPE_ARM),
    *("value_residual", "mudd", "hyper_connections", "attention_residuals", "denseformer"),
    *(f"{RECIPE_ARM}+mudd", "value_residual+mudd", f"{RECIPE_ARM}+hyper_connections"),
)
"""The arms; the others are compared with the first."""
ARITHMETIC = "tiny-aet-4"
# Share of a run's steps, at most, over which learning rates rise.
_MOST_WARMUP = 0.1


def with_recipe(variant: str, *options: str) -> tuple[str, ...]:
    """Return variant and options of an arm, with a name of the recipe, also in a pair, written out.

    An option of the arm takes the place of the recipe's of the same name.
    """
    parts = variant.split("+")
    if VARIANTS.keys().isdisjoint(parts):
        return variant, *options
    recipe = (f"{name}={value}" for name, value in RECIPE.items())
    return "+".join(VARIANTS.get(part, part) for part in parts), *merged(recipe, options)


def boards_of_recipe(
    variants: str,
    texts: Sequence[tuple[str, str, str | None]],
    widths: Sequence[int],
    lengths: Sequence[int],
    *,
    arithmetic: bool,
) -> list[Board]:
    """Return a board for each text, width and number of steps, and one of arithmetic.

    ``texts``: name, source and validation source of each (None: a share of the source).
    """
    # Only here: the command shows the arms without torch.
    from layermem_bench.costs.model_sizes import reshaped
    from layermem_bench.presets import get_preset
    from layermem_bench.studies.boards import board_of

    base, boards = get_preset("quiet-lm"), []
    layers = base.model.num_hidden_layers
    for (name, source, validation), width, steps in product(texts, widths, lengths):
        run = reshaped(base, layers, width)
        run = replace(
            run,
            max_steps=steps,
            eval_every=steps,
            data=replace(run.data, source=source, validation=validation),
            optim=replace(
                run.optim, warmup_steps=min(run.optim.warmup_steps, int(steps * _MOST_WARMUP))
            ),
        )
        boards.append(board_of(run, variants, name=f"{name}-{layers}x{width}-{steps}"))
    if arithmetic:
        boards.append(board_of(get_preset(ARITHMETIC), variants))
    return boards
