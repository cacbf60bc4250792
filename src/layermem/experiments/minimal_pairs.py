"""Have checkpoints judge minimal pairs, compare them pair by pair, and write blimp.json.

It does not know: how a pair is judged, tables, pages.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from layermem.evals.blimp_records import Pair, read_pairs
from layermem.evals.minimal_pairs import compare_pairs, judge_pairs, share_right
from layermem.experiments.analyze_checkpoints import load_model, open_checkpoints
from layermem.experiments.checkpoint_arms import arms_of
from layermem.experiments.grammar_probes import distinct_pairs, probe_pairs
from layermem.results.files import to_json
from layermem.results.minimal_pairs import (
    GrammarProbes,
    MinimalPairsOptions,
    MinimalPairsResult,
    PairComparison,
)
from layermem.runs import create_folder, write_atomically

logger = logging.getLogger(__name__)


def measure_minimal_pairs(
    checkpoints: Sequence[str],
    options: MinimalPairsOptions,
    out: Path,
    *,
    command: str = "",
    progress: Callable[[str, int], None] | None = None,
) -> MinimalPairsResult:
    """Have checkpoints judge pairs; return the result, written to blimp.json in ``out``.

    A checkpoint is a run folder, the folder of a saved model or a hub name. ``progress`` is called
    with the name of the model and the number of its sentences done so far.
    """
    if not options.records:
        raise ValueError("name records of BLiMP: --records FILE or FOLDER")
    pairs = read_pairs([Path(path) for path in options.records], per_paradigm=options.per_paradigm)
    probed = distinct_pairs(pairs, options.probe)
    margins: dict[str, np.ndarray[Any, Any]] = {}
    probes: dict[str, GrammarProbes] = {}
    opened = open_checkpoints(checkpoints, one_vocabulary=False)
    arms = arms_of(opened)
    for checkpoint in opened:
        name = checkpoint.name
        logger.info("judging %s pairs with %s", f"{len(pairs):,}", name)
        report = None if progress is None else partial(progress, name)
        model = load_model(checkpoint, with_head=True)
        margins[name] = judge_pairs(
            model,
            checkpoint.tokenizer,
            pairs,
            batch_size=options.batch_size,
            progress=report,
        )
        if probed:
            logger.info("probing %s with %s pairs", name, f"{len(probed):,}")
            probes[name] = probe_pairs(model, checkpoint.tokenizer, probed)
    result = MinimalPairsResult(
        command=command,
        options=options,
        models={name: share_right(pairs, values) for name, values in margins.items()},
        comparisons=_compare_with_first(pairs, margins),
        probes=probes,
        arms=arms,
    )
    create_folder(out)
    write_atomically(out / "blimp.json", to_json(result))
    return result


def _compare_with_first(
    pairs: Sequence[Pair], margins: dict[str, np.ndarray[Any, Any]]
) -> dict[str, PairComparison]:
    (_, first), *others = margins.items()
    comparisons = {}
    for name, values in others:
        of_all, phenomena = compare_pairs(pairs, values, first)
        comparisons[name] = PairComparison(all=of_all, phenomena=phenomena)
    return comparisons
