"""What trained models come to: Figures 1, 4, 6, 10 and 11, Table 7 and ProsQA."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from layermem_bench.costs.model_sizes import reshaped
from layermem_bench.paper.artefact import (
    FINEWEB,
    Artefact,
    Observing,
    board,
    claims_of_lime,
    lines,
    on_text,
    shares,
)
from layermem_bench.paper.inspecting import (
    analyses,
    entropy,
    losses,
    lower_perplexity,
    perplexities,
    right_answers,
    saved,
)
from layermem_bench.presets import get_preset
from layermem_bench.studies.definition import Board, Observed
from layermem_bench.studies.result import (
    LOSS,
    RIGHT_ANSWERS,
    Claim,
    PaperNumber,
    Scale,
)

_TINY_RATES = (1e-3, 3e-3, 1e-2, 3e-2)
Rates = dict[Scale, tuple[float, ...]]
"""Learning rates that are tried; the paper has one."""
TEXT_RATES: Rates = {"tiny": _TINY_RATES, "small": (3e-4, 1e-3, 3e-3), "paper": ()}
ARITHMETIC_RATES: Rates = {"tiny": _TINY_RATES, "small": (1e-3, 3e-3, 1e-2), "paper": ()}
_DEPTH_RATES: Rates = {**TEXT_RATES, "tiny": (1e-3, 3e-3, 1e-2)}
_TRAINING_LOSS = (
    "The paper draws training loss; here it is validation loss, at the same steps of both arms."
)
_PERPLEXITY, _LOWER = "perplexity", "perplexity below plain"
_SAVED_FLOPS = "FLOPs saved on the way to the higher last loss"
_SAVED_TOKENS = "tokens saved on the way to the higher last loss"


def grouped_queries(scale: Scale, arms: tuple[str, ...] = ("plain", "lime")) -> Board:
    """Return the runs on text with grouped-query attention; the paper's 1B has 8 heads of 32."""
    if scale == "paper":
        return board(get_preset("paper-1b-gqa"), arms)
    base = get_preset("tiny-lm" if scale == "tiny" else "small-30m")
    grouped = replace(base, model=replace(base.model, num_key_value_heads=2))
    return board(grouped, arms, TEXT_RATES[scale], name=f"{base.preset}-gqa")


def full_attention(scale: Scale) -> Board:
    """Return the runs on text with a key-value head for every query head."""
    presets = {"tiny": "tiny-lm", "small": "small-30m", "paper": "paper-1b-full"}
    return board(get_preset(presets[scale]), rates=TEXT_RATES[scale])


def arithmetic(scale: Scale, operands: int) -> Board:
    """Return the runs on expressions of so many operands."""
    return board(get_preset(f"{scale}-aet-{operands}"), rates=ARITHMETIC_RATES[scale])


# Of figure 4.
_OPERANDS = (4, 5, 6)


def answers(operands: int) -> str:
    """Return the quantity of right answers."""
    return f"right answers, {operands} operands"


_ENTROPY = "entropy of the last layer's values"


def _entropies(operands: int) -> str:
    return f"{_ENTROPY}, {operands} operands"


def _fig4(trained: Observing) -> Iterator[Observed]:
    for operands in _OPERANDS:
        of_arithmetic = arithmetic(trained.scale, operands)
        yield from right_answers(trained, of_arithmetic, answers(operands))
        analysed = analyses(trained, of_arithmetic, ("1", "2", "3", "4"), 200)
        yield from entropy(analysed, "routed", _entropies(operands), layer=-1)


def _prosqa(scale: Scale) -> Board:
    text = board(get_preset("paper-150m")) if scale == "paper" else None
    return board(get_preset(f"{scale}-prosqa"), starts_from=text)


def _fig1(trained: Observing) -> Iterator[Observed]:
    text = grouped_queries(trained.scale)
    yield from perplexities(trained, text, _PERPLEXITY)
    yield from lower_perplexity(trained, text, _LOWER)
    yield from saved(trained, text, "flops", _SAVED_FLOPS)


def _fig10(trained: Observing) -> Iterator[Observed]:
    text = grouped_queries(trained.scale)
    yield from losses(trained, text)
    yield from saved(trained, text, "tokens", _SAVED_TOKENS)


def _fig11(trained: Observing) -> Iterator[Observed]:
    text = full_attention(trained.scale)
    yield from perplexities(trained, text, _PERPLEXITY)
    yield from lower_perplexity(trained, text, _LOWER)
    yield from saved(trained, text, "flops", _SAVED_FLOPS)
    yield from saved(trained, text, "tokens", _SAVED_TOKENS)


# Figure 6.
_DEPTHS: dict[Scale, tuple[int, ...]]
_DEPTHS = {"tiny": (8, 16, 32, 64), "small": (16, 32, 64), "paper": (32, 64, 128)}


def _deep(scale: Scale, depth: int) -> Board:
    if scale == "tiny":
        base = reshaped(get_preset("tiny-lm"), depth, width=32)
    elif scale == "small":
        papers = get_preset("paper-depth-32").model
        base = replace(get_preset("small-30m"), model=replace(papers, num_hidden_layers=depth))
    else:
        base = get_preset(f"paper-depth-{depth}")
    return board(base, rates=_DEPTH_RATES[scale], name=f"{scale}-depth-{depth}")


def _arm_at(arm: str, depth: int) -> str:
    return f"{arm}, {depth} layers"


def _fig6(trained: Observing) -> Iterator[Observed]:
    for depth in _DEPTHS[trained.scale]:
        for observed in losses(trained, _deep(trained.scale, depth)):
            yield replace(observed, arm=_arm_at(observed.arm, depth))


def _fig6_claims(scale: Scale) -> Iterator[Claim]:
    # The deepest first, as half of it against all of it is what the figure is known for.
    depths = sorted(_DEPTHS[scale], reverse=True)
    halves = [(half, whole) for whole, half in pairwise(depths)]
    for ours, theirs in (*halves, *zip(depths, depths, strict=True)):
        arm, against = _arm_at("lime", ours), _arm_at("plain", theirs)
        yield Claim(quantity=LOSS, arm=arm, against=against, direction="lower")


# Table 7: the arms with the perplexities that are printed.
_ROUTERS = {
    "plain": 16.4611,
    "lime:router=average": 16.4611,
    "lime:router=last:router_window=2": 16.2810,
    "lime:router=last:router_window=4": 16.1675,
    "lime:router=last:router_window=6": 16.1351,
    "lime:router=first:router_window=2": 15.9746,
    "lime:router=first:router_window=4": 15.9586,
    "lime:router=first:router_window=6": 15.9906,
    "lime": 15.9267,
}
_ROUTER_PRESETS: dict[Scale, tuple[str, ...]]
_ROUTER_PRESETS = {
    "tiny": ("tiny-lm", "tiny-aet-4"),
    "small": ("small-30m",),
    "paper": ("paper-150m",),
}
_VALIDATION_PERPLEXITY = "validation perplexity"


def _router_arms(layers: int) -> tuple[str, ...]:
    """Return the arms without those that are the full router at this depth."""
    # The last layer reads ``layers`` sources. "last" counts its own among them; "first" reads the
    # layer before and the own beside its window.
    full = {
        f"lime:router={kind}:router_window={window}"
        for kind, most in (("last", layers - 1), ("first", layers - 3))
        for window in (2, 4, 6)
        if window > most
    }
    return tuple(arm for arm in _ROUTERS if arm not in full)


def _router_board(scale: Scale, preset: str) -> Board:
    base = get_preset(preset)
    rates = (ARITHMETIC_RATES if base.task.name else TEXT_RATES)[scale]
    return board(base, _router_arms(base.model.num_hidden_layers), rates)


def _router_boards(scale: Scale) -> tuple[Board, ...]:
    return tuple(_router_board(scale, preset) for preset in _ROUTER_PRESETS[scale])


def _table7(trained: Observing) -> Iterator[Observed]:
    on_text, *on_answers = _router_boards(trained.scale)
    yield from perplexities(trained, on_text, _VALIDATION_PERPLEXITY)
    for of_arithmetic in on_answers:
        yield from right_answers(trained, of_arithmetic, answers(4))


def _table7_claims(scale: Scale) -> Iterator[Claim]:
    on_text, *on_answers = (
        [arm.name for arm in each.arms if arm.name != "lime"] for each in _router_boards(scale)
    )
    for arm in on_text:
        yield from claims_of_lime(lower=[_VALIDATION_PERPLEXITY], against=arm)
    yield Claim(quantity=_VALIDATION_PERPLEXITY, arm="lime:router=average", direction="similar")
    for arms in on_answers:
        for arm in arms:
            yield from claims_of_lime(higher=[answers(4)], against=arm)


ARTEFACTS = {
    "fig1": on_text(
        title="Loss per training FLOP, grouped-query attention",
        claim="LIMe has a lower loss than LLaMA at a similar amount of FLOPs: it converges 8.9% "
        "faster in FLOPs and ends at a 0.91% lower perplexity (1B, grouped-query attention).",
        boards=lambda scale: (grouped_queries(scale),),
        observe=_fig1,
        numbers=shares(
            "section 1, with GQA", {(_SAVED_FLOPS, "lime"): 0.089, (_LOWER, "lime"): 0.0091}
        ),
        claims=lambda scale: claims_of_lime(lower=[_PERPLEXITY], higher=[_SAVED_FLOPS]),
        notes=(
            _TRAINING_LOSS,
            "The paper prints no perplexities here, only that LIMe's is 0.91% lower.",
            "FLOPs are counted in closed form, three forwards a step, attention to all keys.",
        ),
    ),
    "fig6": on_text(
        title="Deep decoders: loss by depth",
        claim="LIMe outperforms LLaMA at 32, 64 and 128 layers, and LIMe of 64 layers outperforms "
        "LLaMA of 128.",
        boards=lambda scale: tuple(_deep(scale, depth) for depth in _DEPTHS[scale]),
        observe=_fig6,
        claims=_fig6_claims,
        drawings=lambda scale: (
            lines(LOSS, "layers", _DEPTHS[scale], lambda arm, depth: (LOSS, _arm_at(arm, depth))),
        ),
        notes=(
            _TRAINING_LOSS,
            "Scale tiny has heads of width 8: its deepest models are those of the board "
            "tiny-lm@64x32; scale small has the paper's width and heads.",
            "The figure prints no numbers; width, steps and seed are those of an earlier release "
            "of the paper's code, the learning rate is assumed.",
        ),
    ),
    "fig10": on_text(
        title="Loss per token, grouped-query attention",
        claim="LIMe with grouped-query attention is more data efficient than LLaMA.",
        boards=lambda scale: (grouped_queries(scale),),
        observe=_fig10,
        claims=lambda scale: claims_of_lime(lower=[LOSS], higher=[_SAVED_TOKENS]),
        notes=(_TRAINING_LOSS, "The figure prints no numbers."),
    ),
    "fig11": on_text(
        title="Loss per training FLOP and per token, full attention",
        claim="Without grouped queries LIMe converges 15.3% faster in FLOPs, is more data "
        "efficient and ends at a 1.15% lower perplexity (1B).",
        boards=lambda scale: (full_attention(scale),),
        observe=_fig11,
        numbers=shares("section 1", {(_SAVED_FLOPS, "lime"): 0.153, (_LOWER, "lime"): 0.0115}),
        claims=lambda scale: claims_of_lime(
            lower=[_PERPLEXITY], higher=[_SAVED_FLOPS, _SAVED_TOKENS]
        ),
        notes=(
            _TRAINING_LOSS,
            "The paper prints no perplexities here, only that LIMe's is 1.15% lower.",
        ),
    ),
    "table7": on_text(
        title="Constrained routers, validation perplexity, 150M",
        claim="The full learned router has the lowest perplexity (15.9267 against LLaMA's "
        "16.4611); windows gain less, and a uniform average nothing.",
        boards=_router_boards,
        observe=_table7,
        numbers=tuple(
            PaperNumber(quantity=_VALIDATION_PERPLEXITY, arm=arm, value=value, where="Table 7")
            for arm, value in _ROUTERS.items()
        ),
        claims=_table7_claims,
        notes=(
            "The paper says neither width, depth nor tokens of its 150M: the preset's are assumed.",
            "Right answers of 4 operands are not in the paper's table.",
            "A window that reaches every layer is the full router and no arm of its own: the "
            "first 6 of 8 layers, as each also reads the layer before; the first 2 and the last "
            "4 of 4.",
        ),
    ),
    "fig4": Artefact(
        title="Arithmetic: right answers and entropy of values by operands",
        claim="At 4 operands LIMe performs similarly to LLaMA, at 5 and 6 it is ahead (71.6% "
        "against 41.3% at 6), with a higher entropy of values, most of all in the last layer.",
        boards=lambda scale: tuple(arithmetic(scale, operands) for operands in _OPERANDS),
        observe=_fig4,
        numbers=shares(
            "section 5.3.2", {(answers(6), "plain"): 0.413, (answers(6), "lime"): 0.716}
        ),
        claims=lambda scale: claims_of_lime(
            similar=[answers(4)],
            higher=[answers(5), answers(6), *map(_entropies, _OPERANDS)],
        ),
        drawings=lambda scale: (
            lines("right answers", "operands", _OPERANDS, lambda arm, count: (answers(count), arm)),
            lines(_ENTROPY, "operands", _OPERANDS, lambda arm, count: (_entropies(count), arm)),
        ),
        notes=(
            "The paper states neither the range of its numbers nor the batch: the presets' are "
            "assumed; its level at 6 operands was lower than ours, so its setting was probably "
            "harder.",
            "Entropy is of order 0.5, as in the paper's code, over test problems of the models' "
            "task.",
        ),
    ),
    "prosqa": Artefact(
        title="ProsQA: right answers of fine-tuned 150M models",
        claim="Fine-tuned on ProsQA LIMe answers 77.8% right, LLaMA 69.4%.",
        boards=lambda scale: (_prosqa(scale),),
        observe=lambda trained: right_answers(trained, _prosqa(trained.scale), RIGHT_ANSWERS),
        numbers=shares(
            "section 5.3.1", {(RIGHT_ANSWERS, "plain"): 0.694, (RIGHT_ANSWERS, "lime"): 0.778}
        ),
        claims=lambda scale: claims_of_lime(higher=[RIGHT_ANSWERS]),
        needs={"small": "a GPU", "paper": f"{FINEWEB}; days of GPUs for pretraining"},
        notes=(
            "Scales tiny and small start from new weights; where both arms are at chance nothing "
            "can be said about which is better.",
            "Records are drawn as the original ones are, but for a shortcut that these leave; the "
            "paper's numbers are of the original ones.",
            "Routers keep their own learning rate, 1e-2, in fine-tuning; the paper names 1e-4 "
            "alone.",
        ),
    ),
}
