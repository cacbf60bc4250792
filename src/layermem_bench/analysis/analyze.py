"""Analyze one checkpoint, or two side by side, by every analysis there is -> analysis.json."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from layermem_base.files import write_atomically
from layermem_bench.analysis.capture import Subject
from layermem_bench.analysis.entropy import entropy_by_layer
from layermem_bench.analysis.result import Analysis, AnalysisOptions, ModelAnalysis
from layermem_bench.analysis.routing import weights_over_depth, what_routers_read
from layermem_bench.analysis.separability import words_by_layer
from layermem_bench.analysis.texts import choose_texts
from layermem_bench.config.typed_dicts import to_json
from layermem_bench.run.trained_models import Checkpoint, load_model, open_checkpoints

logger = logging.getLogger(__name__)

ANALYSES: Sequence[Callable[[Subject], Mapping[str, Any]]] = (
    entropy_by_layer,
    words_by_layer,
    what_routers_read,
    weights_over_depth,
)
"""What is computed of every model: functions that return fields of ``ModelAnalysis``."""


def analyze(
    checkpoints: Sequence[str], options: AnalysisOptions, out: Path, command: str = ""
) -> Analysis:
    """Analyze one or two checkpoints; return the result and write it to analysis.json in ``out``.

    A checkpoint is a run folder, the folder of a saved model or a hub name. With two, the texts are
    chosen by the first. ``command`` is recorded as what made the result.
    """
    opened = open_checkpoints(checkpoints)
    texts = choose_texts(options, opened[0])
    options = replace(options, words=texts.words)

    def analyze_model(checkpoint: Checkpoint) -> ModelAnalysis:
        logger.info("analyzing %s", checkpoint.name)
        model = load_model(checkpoint)
        subject = Subject(model=model, checkpoint=checkpoint, texts=texts, options=options)
        fields = {name: value for each in ANALYSES for name, value in each(subject).items()}
        return ModelAnalysis(
            class_name=type(model).__name__,
            layers=model.config.num_hidden_layers,
            width=model.config.hidden_size,
            parameters=model.num_parameters(),
            run_id=None if checkpoint.run is None else checkpoint.run.id,
            **fields,
        )

    analysis = Analysis(
        command=command,
        options=options,
        sequences=len(texts.sequences),
        models={checkpoint.name: analyze_model(checkpoint) for checkpoint in opened},
    )
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "analysis.json", to_json(analysis))
    return analysis
