"""Models of transformers with a head for classes: loaded, attached, with what they train.

The head is what lies outside of the base model, the pooler, and any weight that the checkpoint
lacks. It always trains; where it is new, its weights come from the run's seed.

It does not know: records, the training loop.
"""

import logging
from collections.abc import Collection
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification

from layermem.config import Run
from layermem.experiments.host_memory import check_same_memory, choose_trained
from layermem.retrofit import attach
from layermem.retrofit.loading import is_attached, load_reporting, without_loading_report

logger = logging.getLogger(__name__)


def load_classifier(run: Run, config: Any) -> Any:
    """Return the classifier of a run, in float32, with the parameters that it trains.

    ``config``: its config, with the classes and the padding token.
    """
    host, location = run.host, str(run.host.model)
    options = {"config": config, "dtype": torch.float32}
    missing: Collection[str] = ()
    has_memory = False
    if run.records.from_config is not None:
        logger.info("%s: random weights, of seed %d", run.records.from_config, run.seed)
        model: Any = AutoModelForSequenceClassification.from_config(**options)
    elif is_attached(location):
        check_same_memory(location, host)
        has_memory = True
        model, missing = load_reporting(
            location, auto_class=AutoModelForSequenceClassification, **options
        )
    else:
        with without_loading_report():
            model, info = AutoModelForSequenceClassification.from_pretrained(
                location, revision=host.revision or "main", output_loading_info=True, **options
            )
        missing = info["missing_keys"]
    _check_missing(model, missing, location)
    if host.memory != "none" and not has_memory:
        attach(model, host.memory, host.window)
    choose_trained(model, host)
    for name, parameter in model.named_parameters():
        if is_head(name, model.base_model_prefix):
            parameter.requires_grad_(True)
    return model


def is_head(name: str, base: str) -> bool:
    """Return whether a parameter belongs to the head; ``base``: the name of the base model."""
    return not name.startswith(f"{base}.") or ".pooler." in name


def _check_missing(model: Any, missing: Collection[str], location: str) -> None:
    """Raise if weights beside the head's are missing; log those of the head that are new."""
    lost = sorted(name for name in missing if not is_head(name, model.base_model_prefix))
    if lost:
        raise ValueError(
            f"{location} lacks {len(lost)} weights of {type(model).__name__}, such as {lost[0]}: "
            "it is damaged, or of another architecture than its config.json says"
        )
    if missing:
        logger.info("new weights, by the run's seed: %s", ", ".join(sorted(missing)))
