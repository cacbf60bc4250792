"""Models of transformers with a head for records: loaded, attached, with what they train.

The head is what lies outside of the base model, the pooler, and any weight that the checkpoint
lacks. It always trains; where it is new, its weights come from the run's seed.

It does not know: records, the training loop.
"""

import logging
from collections.abc import Collection
from typing import Any, final

import torch
from transformers import AutoModel

from layermem.config import Run
from layermem.experiments.host_memory import check_same_memory, choose_trained
from layermem.retrofit import attach
from layermem.retrofit.loading import is_attached, load_reporting, without_loading_report

logger = logging.getLogger(__name__)


def load_record_model(run: Run, config: Any, auto_class: Any) -> Any:
    """Return the model of a run on records, in float32, with the parameters that it trains.

    ``config``: its config, with what its head needs and the padding token; ``auto_class``: the
    class of transformers that has the head.
    """
    host, location = run.host, str(run.host.model)
    options = {"config": config, "dtype": torch.float32}
    missing: Collection[str] = ()
    has_memory = False
    if run.records.from_config is not None:
        logger.info("%s: random weights, of seed %d", run.records.from_config, run.seed)
        model: Any = auto_class.from_config(**options)
    elif is_attached(location):
        check_same_memory(location, host)
        has_memory = True
        model, missing = load_reporting(location, auto_class=_WholeBase(auto_class), **options)
    else:
        with without_loading_report():
            model, info = _WholeBase(auto_class).from_pretrained(
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


@final
class _WholeBase:
    """Loads a class of transformers with all weights of its base model.

    Some classes call the base by another name than the checkpoints of their architecture do: that
    for question answering on a LLaMA ``transformer``, its causal model ``model``. transformers
    then leaves all of it at random weights. Here the base is loaded by itself, and put there.
    """

    def __init__(self, auto_class: Any) -> None:
        self.auto_class = auto_class

    def from_pretrained(self, location: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Return the model and what ``output_loading_info`` says."""
        model, info = self.auto_class.from_pretrained(location, **options)
        prefix = f"{model.base_model_prefix}."
        names = {name for name in model.state_dict() if name.startswith(prefix)}
        if not names or not names <= set(info["missing_keys"]):
            return model, info
        base, of_base = AutoModel.from_pretrained(location, **options)
        state = base.state_dict()
        getattr(model, model.base_model_prefix).load_state_dict(state, strict=False)
        there = {f"{prefix}{name}" for name in state.keys() - set(of_base["missing_keys"])}
        missing = set(info["missing_keys"]) - there
        unexpected = of_base["unexpected_keys"]
        return model, {**info, "missing_keys": missing, "unexpected_keys": unexpected}


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
