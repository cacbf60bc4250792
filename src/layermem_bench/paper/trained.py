"""What trained models come to: Figures 1, 4, 6, 10 and 11, Table 7 and ProsQA."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from layermem_bench.costs.model_sizes import reshaped
from layermem_bench.paper.artefact import (
    FINEWEB,
    Artefact,
    Runs,
    board,
    full_attention,
    grouped_queries,
    lime_is,
    lines,
    observe,
    pairs,
    shares,
)
from layermem_bench.paper.inside import NUMBERS, analyses, entropy
from layermem_bench.presets import get_preset
from layermem_bench.studies.definition import Board, Observed, Trained
from layermem_bench.studies.result import (
    LOSS,
    RIGHT_ANSWERS,
    Claim,
    PaperNumber,
    RunRecord,
    Scale,
    Validation,
)

_TRAINING_LOSS = (
    "The paper draws training loss; here it is validation loss, at the same steps of both arms."
)
_PERPLEXITY, _LOWER = "perplexity", "perplexity below plain"
_OPERANDS = (4, 5, 6)
_SAVED = {
    across: f"{across} saved on the way to the higher last loss" for across in ("FLOPs", "tokens")
}


def losses(runs: Runs) -> Iterator[Observed]:
    """Yield the last validation loss of each arm."""
    return observe(runs, LOSS, lambda run: run.metrics[LOSS])


def perplexities(runs: Runs, quantity: str) -> Iterator[Observed]:
    """Yield the exponential of the last validation loss of each arm."""
    return observe(runs, quantity, lambda run: math.exp(run.metrics[LOSS]))


def right_answers(runs: Runs, quantity: str) -> Iterator[Observed]:
    """Yield the share of test problems that each arm solves, with a guess's."""

    def chance(run: RunRecord) -> float:
        return (run.solved and run.solved.chance) or 0.0

    return observe(runs, quantity, lambda r: r.metrics[RIGHT_ANSWERS], chance, is_share=True)


def saved(runs: Runs, across: str) -> Iterator[Observed]:
    """Yield which share of tokens or FLOPs LIMe saves on the way to a validation loss.

    The loss is the higher one of its and the plain decoder's last, seed by seed, so that both reach
    it, whichever is better. ``across``: of ``_SAVED``. The share is below 0 where it needs more
    than the plain decoder, which saves nothing against itself.
    """

    def share(pair: tuple[RunRecord, RunRecord]) -> float:
        target = max(record.validations[-1].val_loss for record in pair)
        ours, theirs = (_reached(record.validations, across, target) for record in pair)
        return 1 - ours / theirs

    both = pairs(runs)
    yield from observe({"lime": both}, _SAVED[across], share, is_share=True)
    yield from observe({"plain": both}, _SAVED[across], lambda pair: 0.0, is_share=True)


def _reached(curve: Sequence[Validation], across: str, target: float) -> float:
    """Return the tokens or FLOPs at which a curve is first at a loss, or interpolated, below it."""
    points = [(float(getattr(each, across.lower())), each.val_loss) for each in curve]
    first = next(i for i, (_, loss) in enumerate(points) if loss <= target)
    if first == 0:
        return points[0][0]
    (at_before, loss_before), (at, loss) = points[first - 1], points[first]
    return at_before + (loss_before - target) / (loss_before - loss) * (at - at_before)


def _faster(trained: Trained, text: Board, *across: str) -> Iterator[Observed]:
    """Yield perplexities, by which share LIMe's is below the plain decoder's, and what it saves."""

    def below(pair: tuple[RunRecord, RunRecord]) -> float:
        ours, theirs = (run.metrics[LOSS] for run in pair)
        return 1 - math.exp(ours - theirs)

    runs = trained.of(text)
    yield from perplexities(runs, _PERPLEXITY)
    yield from observe({"lime": pairs(runs)}, _LOWER, below, is_share=True)
    for each in across:
        yield from saved(runs, each)


def fig1(scale: Scale) -> Artefact:
    """Loss per training FLOP, grouped-query attention."""
    text = grouped_queries(scale)
    return Artefact(
        claim="LIMe has a lower loss than LLaMA at a similar amount of FLOPs: it converges 8.9% "
        "faster in FLOPs and ends at a 0.91% lower perplexity (1B, grouped-query attention).",
        boards=(text,),
        observe=lambda trained: _faster(trained, text, "FLOPs"),
        papers=shares(
            "section 1, with GQA", {(_SAVED["FLOPs"], "lime"): 0.089, (_LOWER, "lime"): 0.0091}
        ),
        claims=(*lime_is("lower", _PERPLEXITY), *lime_is("higher", _SAVED["FLOPs"])),
        notes=(
            _TRAINING_LOSS,
            "The paper prints no perplexities here, only that LIMe's is 0.91% lower.",
            "FLOPs are counted in closed form, three forwards a step, attention to all keys.",
        ),
    )


def fig10(scale: Scale) -> Artefact:
    """Loss per token, grouped-query attention."""
    text = grouped_queries(scale)
    return Artefact(
        claim="LIMe with grouped-query attention is more data efficient than LLaMA.",
        boards=(text,),
        observe=lambda trained: (*losses(trained.of(text)), *saved(trained.of(text), "tokens")),
        claims=(*lime_is("lower", LOSS), *lime_is("higher", _SAVED["tokens"])),
        notes=(_TRAINING_LOSS, "The figure prints no numbers."),
    )


def fig11(scale: Scale) -> Artefact:
    """Loss per training FLOP and per token, full attention."""
    text = full_attention(scale)
    return Artefact(
        claim="Without grouped queries LIMe converges 15.3% faster in FLOPs, is more data "
        "efficient and ends at a 1.15% lower perplexity (1B).",
        boards=(text,),
        observe=lambda trained: _faster(trained, text, "FLOPs", "tokens"),
        papers=shares("section 1", {(_SAVED["FLOPs"], "lime"): 0.153, (_LOWER, "lime"): 0.0115}),
        claims=(*lime_is("lower", _PERPLEXITY), *lime_is("higher", *_SAVED.values())),
        notes=(
            _TRAINING_LOSS,
            "The paper prints no perplexities here, only that LIMe's is 1.15% lower.",
        ),
    )


def _deep(scale: Scale, depth: int) -> Board:
    """Return the runs of Figure 6 at one depth."""
    if scale == "tiny":
        base = reshaped(get_preset("tiny-lm"), depth, width=32)
    elif scale == "small":
        papers = get_preset("paper-depth-32").model
        base = replace(get_preset("small-30m"), model=replace(papers, num_hidden_layers=depth))
    else:
        base = get_preset(f"paper-depth-{depth}")
    made = board(scale, base, name=f"{scale}-depth-{depth}")
    return replace(made, rates=made.rates[:3])


def fig6(scale: Scale) -> Artefact:
    """Deep decoders: loss by depth."""
    depths = {"tiny": (8, 16, 32, 64), "small": (16, 32, 64), "paper": (32, 64, 128)}[scale]
    boards = {depth: _deep(scale, depth) for depth in depths}

    def at(arm: str, depth: int) -> str:
        return f"{arm}, {depth} layers"

    def observe(trained: Trained) -> Iterator[Observed]:
        for depth, deep in boards.items():
            for observed in losses(trained.of(deep)):
                yield replace(observed, arm=at(observed.arm, depth))

    # The deepest first, as half of it against all of it is what the figure is known for.
    halves = [(half, whole) for half, whole in pairwise(depths)][::-1]
    return Artefact(
        claim="LIMe outperforms LLaMA at 32, 64 and 128 layers, and LIMe of 64 layers outperforms "
        "LLaMA of 128.",
        boards=tuple(boards.values()),
        observe=observe,
        claims=tuple(
            Claim(quantity=LOSS, arm=at("lime", a), against=at("plain", b), direction="lower")
            for a, b in (*halves, *((depth, depth) for depth in depths[::-1]))
        ),
        drawings=(lines(LOSS, "layers", depths, lambda arm, depth: (LOSS, at(arm, depth))),),
        notes=(
            _TRAINING_LOSS,
            "Scale tiny has heads of width 8: its deepest models are those of the board "
            "tiny-lm@64x32; scale small has the paper's width and heads.",
            "The figure prints no numbers; width, steps and seed are those of an earlier release "
            "of the paper's code, the learning rate is assumed.",
        ),
    )


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


def _of_routers(scale: Scale, preset: str) -> Board:
    """Return the runs of Table 7 on a preset, without arms that are the full router there."""
    base = get_preset(preset)
    # The last layer reads ``layers`` sources. "last" counts its own among them; "first" reads the
    # layer before and the own beside its window.
    layers = base.model.num_hidden_layers
    full = {
        f"lime:router={kind}:router_window={window}"
        for kind, most in (("last", layers - 1), ("first", layers - 3))
        for window in (2, 4, 6)
        if window > most
    }
    return board(scale, base, ",".join(arm for arm in _ROUTERS if arm not in full))


def table7(scale: Scale) -> Artefact:
    """Constrained routers, validation perplexity, 150M."""
    of_text = {"tiny": "tiny-lm", "small": "small-30m", "paper": "paper-150m"}[scale]
    presets = [of_text, "tiny-aet-4"] if scale == "tiny" else [of_text]
    boards = tuple(_of_routers(scale, preset) for preset in presets)
    perplexity, right = "validation perplexity", _answers(4)

    def observe(trained: Trained) -> Iterator[Observed]:
        text, *of_arithmetic = map(trained.of, boards)
        yield from perplexities(text, perplexity)
        for runs in of_arithmetic:
            yield from right_answers(runs, right)

    def claims() -> Iterator[Claim]:
        text, *of_arithmetic = ([a.name for a in b.arms if a.name != "lime"] for b in boards)
        for arm in text:
            yield from lime_is("lower", perplexity, against=arm)
        yield Claim(quantity=perplexity, arm="lime:router=average", direction="similar")
        for arm in (arm for arms in of_arithmetic for arm in arms):
            yield from lime_is("higher", right, against=arm)

    return Artefact(
        claim="The full learned router has the lowest perplexity (15.9267 against LLaMA's "
        "16.4611); windows gain less, and a uniform average nothing.",
        boards=boards,
        observe=observe,
        papers=tuple(
            PaperNumber(quantity=perplexity, arm=arm, value=value, where="Table 7")
            for arm, value in _ROUTERS.items()
        ),
        claims=tuple(claims()),
        notes=(
            "The paper says neither width, depth nor tokens of its 150M: the preset's are assumed.",
            "Right answers of 4 operands are not in the paper's table.",
            "A window that reaches every layer is the full router and no arm of its own: the "
            "first 6 of 8 layers, as each also reads the layer before; the first 2 and the last "
            "4 of 4.",
        ),
    )


def _answers(operands: int) -> str:
    return f"right answers, {operands} operands"


def fig4(scale: Scale) -> Artefact:
    """Arithmetic: right answers and entropy of values by operands."""
    boards = {n: board(scale, get_preset(f"{scale}-aet-{n}")) for n in _OPERANDS}
    last = "entropy of the last layer's values"
    entropies = {n: f"{last}, {n} operands" for n in _OPERANDS}

    def observe(trained: Trained) -> Iterator[Observed]:
        for operands, of_operands in boards.items():
            yield from right_answers(trained.of(of_operands), _answers(operands))
            analysed = analyses(trained, of_operands, *NUMBERS["1 to 4"])
            yield from entropy(analysed, "routed", entropies[operands], layer=-1)

    four, five, six = map(_answers, _OPERANDS)
    return Artefact(
        claim="At 4 operands LIMe performs similarly to LLaMA, at 5 and 6 it is ahead (71.6% "
        "against 41.3% at 6), with a higher entropy of values, most of all in the last layer.",
        boards=tuple(boards.values()),
        observe=observe,
        papers=shares("section 5.3.2", {(six, "plain"): 0.413, (six, "lime"): 0.716}),
        claims=(*lime_is("similar", four), *lime_is("higher", five, six, *entropies.values())),
        drawings=(
            lines("right answers", "operands", _OPERANDS, lambda arm, n: (_answers(n), arm)),
            lines(last, "operands", _OPERANDS, lambda arm, n: (entropies[n], arm)),
        ),
        notes=(
            "The paper states neither the range of its numbers nor the batch: the presets' are "
            "assumed; its level at 6 operands was lower than ours, so its setting was probably "
            "harder.",
            "Entropy is of order 0.5, as in the paper's code, over test problems of the models' "
            "task.",
        ),
    )


def prosqa(scale: Scale) -> Artefact:
    """ProsQA: right answers of fine-tuned 150M models."""
    text = board(scale, get_preset("paper-150m")) if scale == "paper" else None
    of_problems = board(scale, get_preset(f"{scale}-prosqa"))
    of_problems = replace(of_problems, rates=(), starts_from=text)
    needs = {"tiny": "", "small": "a GPU", "paper": f"{FINEWEB}; days of GPUs for pretraining"}
    printed = {(RIGHT_ANSWERS, "plain"): 0.694, (RIGHT_ANSWERS, "lime"): 0.778}
    return Artefact(
        claim="Fine-tuned on ProsQA LIMe answers 77.8% right, LLaMA 69.4%.",
        boards=(of_problems,),
        observe=lambda trained: right_answers(trained.of(of_problems), RIGHT_ANSWERS),
        papers=shares("section 5.3.1", printed),
        claims=lime_is("higher", RIGHT_ANSWERS),
        needs=needs[scale],
        notes=(
            "Scales tiny and small start from new weights; where both arms are at chance nothing "
            "can be said about which is better.",
            "Records are drawn as the original ones are, but for a shortcut that these leave; the "
            "paper's numbers are of the original ones.",
            "Routers keep their own learning rate, 1e-2, in fine-tuning; the paper names 1e-4 "
            "alone.",
        ),
    )


ARTEFACTS = (fig1, fig4, fig6, fig10, fig11, prosqa, table7)
