"""Analyze one checkpoint, or two side by side, and write the result to analysis.json.

    analyze_checkpoints   opens checkpoints, and refuses those that cannot be compared
    analyze_texts         chooses words and texts, and finds the words in the texts
    analyze_model         computes the numbers of one model

Everything that may be refused is checked before the weights of a model are loaded.
"""

import itertools
import logging
from collections.abc import Sequence
from pathlib import Path

from layermem.experiments.analyze_checkpoints import (
    check_same_tokens,
    load_model,
    open_checkpoints,
)
from layermem.experiments.analyze_model import analyze_model
from layermem.experiments.analyze_texts import choose_words, find_words, read_texts
from layermem.results.analysis import Analysis, AnalysisOptions
from layermem.results.files import to_json
from layermem.runs import create_folder, write_atomically

logger = logging.getLogger(__name__)


def analyze(
    checkpoints: Sequence[str], options: AnalysisOptions, out: Path, command: str = ""
) -> Analysis:
    """Analyze one or two checkpoints; return the result and write it to analysis.json in ``out``.

    A checkpoint is a run folder, the folder of a saved model or a hub name. With two, the texts are
    chosen by the first. ``command`` is recorded as what made the result.
    """
    opened = open_checkpoints(checkpoints)
    first = opened[0]
    options = choose_words(options, first)
    where, texts = read_texts(options, first)
    sequences = list(itertools.islice(texts, options.sequences))
    if not sequences:
        raise ValueError(
            f"there is no sequence of {options.length} tokens in {where}; lower --length"
        )
    occurrences = find_words(options, first)
    if len(opened) == 2:
        found_in = dict.fromkeys(occurrence.text for occurrence in occurrences)
        check_same_tokens(opened[0], opened[1], [*sequences, *found_in])
    models = [load_model(checkpoint) for checkpoint in opened]
    analyses = {}
    for checkpoint, model in zip(opened, models, strict=True):
        logger.info("analyzing %s", checkpoint.name)
        analyses[checkpoint.name] = analyze_model(
            model, checkpoint, sequences, occurrences, options
        )
    analysis = Analysis(
        command=command,
        folder=str(out),
        options=options,
        sequences=len(sequences),
        models=analyses,
    )
    create_folder(out)
    write_atomically(out / "analysis.json", to_json(analysis))
    return analysis
