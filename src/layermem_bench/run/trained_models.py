"""Trained models: opening the checkpoints of a command, and what a model was trained on.

Opening reads a config and a tokenizer; weights are read by ``load_model``, after all other checks.

The lineage of a model says, stage by stage, what it was trained on:

    "layermem_lineage": {"before": null,
                         "stages": [{"run_id": "2a2dea647461", "documents": "hashes", ...}]}

A run refuses validation data that an earlier stage trained on. It also refuses a model whose
training history is damaged. Documents and problems of files are known by a sketch of
their hashes, which says how many are missed (``text.blocks``). Drawn problems have none:
each is on one side of the split by its own hash, in every run.

A run writes the lineage into the config of the model that it trains, and so it goes wherever the
model goes: into checkpoints, copies, conversions, attached models, saved routers and the hub. A
model without it was trained by others, and what it has seen is unknown.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig

from layermem.models.configuration import LINEAGE
from layermem.models.hub import find_commit
from layermem.models.pretrained import naming_source
from layermem.retrofit.loading import find_base, is_attached, load_attached
from layermem_bench.config.run import Data, Run
from layermem_bench.config.typed_dicts import from_dict, to_dict
from layermem_bench.run.folder import RunFolder, recorded_run, unique_names
from layermem_bench.text.blocks import Sketch


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose weights are not loaded yet."""

    name: str
    """The end of its path, as long as needed to differ from the other's."""
    location: Path | str
    """Folder of the saved model or of an adapter, or its name on the hub."""
    tokenizer: Any
    run: Run | None
    """The run that trained it; None: it is no run's."""
    text: Data | None = None
    """How it was trained on text, if a run of ours did so last."""
    goes_on: bool = False
    """Whether its training went on from a model of others, which began texts in its own way."""
    folder: RunFolder | None = None
    base: Path | str | None = None
    """Of the folder of an adapter: the model that it belongs to; None: it is a whole checkpoint."""
    revision: str | None = None
    """Of the hub: the commit that all files of the model, or of the base, are of."""

    @property
    def has_added_tokens(self) -> bool:
        """Whether the model has learnt what the tokenizer puts before a text: runs on text from new
        weights have it nowhere in their blocks."""
        return self.text is None or self.goes_on

    @property
    def predecessor(self) -> int | None:
        """Id that stands before a text; None: nothing, or nothing that the model has learnt.

        In the blocks of a run on text from new weights it is the end token, which says nothing
        where documents are kept apart; else the tokenizer's BOS, or EOS where it has no BOS, so
        that a model and what it was made from are read alike.
        """
        bos, eos = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        if self.text is not None and not self.has_added_tokens:
            return None if self.text.isolate_documents else eos
        return eos if bos is None else bos

    def load_config(self) -> Any:
        """Return the config of the model."""
        location = self.base or self.location
        return AutoConfig.from_pretrained(location, revision=self.revision or "main")


def open_checkpoints(paths: Sequence[str], *, one_vocabulary: bool = True) -> list[Checkpoint]:
    """Open checkpoints; ``one_vocabulary``: refuse two that have different vocabularies."""
    # A path that does not exist is a name on the hub.
    parts = [Path(path).resolve().parts if Path(path).exists() else (path,) for path in paths]
    if len(set(parts)) < len(parts):
        raise ValueError(f"{' and '.join(paths)} are one checkpoint; give different ones")
    opened = list(map(_open_checkpoint, paths, unique_names(parts)))
    vocabularies = [each.tokenizer.get_vocab() for each in opened] if one_vocabulary else []
    if any(other != vocabularies[0] for other in vocabularies[1:]):
        raise ValueError(
            f"{' and '.join(each.name for each in opened)} have different tokenizers, so the "
            "models cannot be compared token by token; analyze them one at a time"
        )
    return opened


def load_model(
    checkpoint: Checkpoint, *, with_head: bool = False, dtype: torch.dtype | str = torch.float32
) -> Any:
    """Load the model, attached or not, to a GPU if there is one; raise if it lacks any weights.

    With ``with_head`` it is to predict the next token, so that an encoder is refused. Without it
    the head may be missing: nothing is predicted. ``dtype``: "auto" is that of the saved weights.
    """
    location = checkpoint.location
    load = load_attached if is_attached(location) else AutoModelForCausalLM.from_pretrained
    of_hub = {} if checkpoint.revision is None else {"revision": checkpoint.revision}
    with naming_source(location):
        model, info = load(location, dtype=dtype, output_loading_info=True, **of_hub)
    # Any other missing weight would be measured at its random start.
    prefix = "" if with_head else f"{model.base_model_prefix}."
    if missing := sorted(name for name in info["missing_keys"] if name.startswith(prefix)):
        raise ValueError(
            f"{location} lacks {len(missing)} of the model's weights, such as {missing[0]}: it is "
            "damaged, or of another architecture than its config.json says; save it again"
        )
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    if with_head:
        check_causal(model)
    return model


@torch.no_grad()
def check_causal(model: Any) -> None:
    """Raise if a token changes what is predicted before it, as in an encoder.

    ``AutoModelForCausalLM`` takes encoders such as RoBERTa too, without a weight that is missing.
    """
    was_training = model.training
    ids = torch.arange(8, device=model.device) % model.config.get_text_config().vocab_size
    other = torch.cat([ids[:-1], ids[:1]])
    logits = model.eval()(torch.stack([ids, other])).logits[:, :-1].float()
    model.train(was_training)
    tolerance = max(1e-5, torch.finfo(model.dtype).eps)
    if (logits[0] - logits[1]).abs().max() > tolerance * logits.abs().max():
        raise ValueError(
            f"{type(model).__name__} is no decoder: a token changes what is predicted before it, "
            "so that it cannot predict the next token; name a decoder"
        )


def _open_checkpoint(path: str, name: str) -> Checkpoint:
    """Open the final model of a run, a saved model, or a model on the hub."""
    folder = RunFolder(path)
    is_run = folder.config.exists()
    if is_run and not folder.final.exists():
        raise ValueError(
            f"{path} is a run that has not ended; let it end, or name one of its checkpoints"
        )
    location = folder.final if is_run else path
    base, revision = find_base(location) if is_attached(location) else (location, None)
    try:
        AutoConfig.from_pretrained(base, revision=revision or "main")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no model at {base}: expected a run folder, a saved model, or a name on the hub that "
            f"can be reached ({error})"
        ) from error
    # Asked once there is a model; what is pushed from here on is not mixed with it.
    revision = find_commit(base, revision=revision) or revision
    lineage = read_lineage(location, revision)
    has_tokenizer = (Path(location) / "tokenizer_config.json").exists()
    return Checkpoint(
        name=name,
        location=location,
        tokenizer=_load_tokenizer(location) if has_tokenizer else _load_tokenizer(base, revision),
        run=recorded_run(folder) if is_run else None,
        text=lineage.stages[-1].text if lineage.stages else None,
        goes_on=lineage.before is not None and bool(lineage.stages),
        folder=folder if is_run else None,
        base=None if base == location else base,
        revision=revision,
    )


def _load_tokenizer(location: Path | str, revision: str | None = None) -> Any:
    """Return the tokenizer of a checkpoint; raise if there is none."""
    reason = "it has no words"
    try:
        tokenizer = AutoTokenizer.from_pretrained(location, revision=revision or "main")
        # Of some families transformers makes one without words where there are no files.
        if len(tokenizer) > len(set(tokenizer.all_special_ids)):
            return tokenizer
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
    raise ValueError(
        f"the model {location} has no tokenizer ({reason}); save the one that it was trained with "
        "beside it (tokenizer.save_pretrained)"
    )


ORIGIN = "origin.json"
"""File of a run's checkpoint, which no other checkpoint has."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What one run trained a model on."""

    run_id: str
    text: Data | None = None
    """How text was read; None: it learnt problems of a task."""
    documents: str = ""
    """Sketch of what was trained on; empty: drawn problems."""


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """All stages of a model's training, the first one first."""

    before: str | None = None
    """Model that the first stage started from, of unknown training; None: new weights."""
    stages: tuple[Stage, ...] = ()

    def stage_that_learnt(self, documents: Sketch) -> Stage | None:
        """Return the last stage that trained on some of these documents."""
        stages = reversed(self.stages)
        return next((s for s in stages if documents.copies_in(Sketch.from_text(s.documents))), None)

    def __str__(self) -> str:
        unknown = self.before and f"{self.before}, whose training data are unknown"
        runs = ", ".join(stage.run_id for stage in self.stages)
        return ", then ".join(filter(None, (unknown, runs)))


def stage_of(run: Run, documents: Sketch) -> Stage:
    """Return what a run trains on."""
    # Where its prepared tokens lie is of no use elsewhere.
    text = None if run.task.name else replace(run.data, cache=None)
    return Stage(run_id=run.id, text=text, documents=documents.to_text())


def write_lineage(config: Any, lineage: Lineage) -> None:
    """Write a lineage into the config of a model."""
    setattr(config, LINEAGE, to_dict(lineage))


def read_lineage(location: str | Path, revision: str | None = None) -> Lineage:
    """Return the lineage of a saved model, in a folder or on the hub.

    A damaged one is an error. What cannot be read at all is left to whoever loads the model.
    """
    saved = _saved_config(location, revision)
    if LINEAGE not in saved:
        return Lineage(before=str(location))
    try:
        lineage = from_dict(Lineage, saved[LINEAGE], "")
        if not lineage.stages:
            raise ValueError("it has no stage")
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"config.json of {location} does not say what the model was trained on ({LINEAGE}: "
            f"{error}): put back the file that the run wrote, or train it again"
        ) from error
    return lineage


def check_earlier_stages(run: Run, held_out: Sketch) -> Lineage:
    """Raise where a stage of the model that a run starts from was trained on its held-out data;
    return the stages, of which new weights have none."""
    start = run.model.pretrained or run.host.model
    lineage = Lineage() if start is None else read_lineage(start, run.host.revision)
    if stage := lineage.stage_that_learnt(held_out):
        raise ValueError(
            f"{start}, which this run starts from, was trained by run {stage.run_id} on documents "
            "that are held out here: name a --data.validation (of a task, --task.options "
            "validation=FILE test=FILE) of others, or hold out the share that was held out there"
        )
    return lineage


def _saved_config(location: str | Path, revision: str | None) -> Mapping[str, Any]:
    try:
        saved: dict[str, Any] = PreTrainedConfig.get_config_dict(location, revision=revision)[0]
    except (OSError, ValueError):
        return {}
    # A model with attached memory has its host's config inside its own; a config beside saved
    # routers is that of their base, and routers.json says what trained both.
    saved = {**saved.get("host_config", {}), **saved}
    routers = Path(location, "routers.json")
    settings = json.loads(routers.read_text(encoding="utf-8")) if routers.is_file() else {}
    return saved | {LINEAGE: settings[LINEAGE]} if LINEAGE in settings else saved
