"""Open the checkpoints of a command, and load their models.

Opening reads a config and a tokenizer; weights are read by ``load_model``, after all other checks.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from layermem.models.hub import find_commit
from layermem.models.pretrained import naming_source
from layermem.retrofit.loading import find_base, is_attached, load_attached
from layermem_bench.analysis.earlier_stages import read_lineage
from layermem_bench.config.run import Data, Run
from layermem_bench.results.run_folder import RunFolder, recorded_run, unique_names

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose weights are not loaded yet."""

    name: str
    """Its name in the result: the end of its path, as long as needed to differ from the other's."""
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
    names = unique_names(parts)
    checkpoints = [_open_checkpoint(path, name) for path, name in zip(paths, names, strict=True)]
    if one_vocabulary and len(checkpoints) == 2:
        first, second = checkpoints
        if first.tokenizer.get_vocab() != second.tokenizer.get_vocab():
            raise ValueError(
                f"{first.name} and {second.name} have different tokenizers, so the models cannot "
                "be compared token by token; analyze them one at a time"
            )
    return checkpoints


def load_model(
    checkpoint: Checkpoint, *, with_head: bool = False, dtype: torch.dtype | str = torch.float32
) -> Any:
    """Load the model, in float32, to a GPU if there is one; raise if it lacks any weights.

    With ``with_head`` it is to predict the next token, so that an encoder is refused. Without it
    the head may be missing: nothing is predicted.
    """
    location, revision = checkpoint.location, checkpoint.revision
    model = _load_whole(location, dtype, with_head=with_head, revision=revision)
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    if with_head:
        check_causal(model)
    return model


def load_final(location: Path) -> Any:
    """Return the final model of a run, attached or not, as it was saved; refuse one that lacks
    weights."""
    return _load_whole(location, "auto", with_head=True)


def _load_whole(
    location: Path | str,
    dtype: torch.dtype | str,
    *,
    with_head: bool,
    revision: str | None = None,
) -> Any:
    """Return a model, attached or not; refuse one that lacks weights, but for the head's."""
    load = load_attached if is_attached(location) else AutoModelForCausalLM.from_pretrained
    of_hub = {} if revision is None else {"revision": revision}
    with _explain_missing_model(location), naming_source(location):
        model, info = load(location, dtype=dtype, output_loading_info=True, **of_hub)
    # Any other missing weight would be measured at its random start.
    prefix = "" if with_head else f"{model.base_model_prefix}."
    if missing := sorted(name for name in info["missing_keys"] if name.startswith(prefix)):
        raise ValueError(
            f"{location} lacks {len(missing)} of the model's weights, such as {missing[0]}: it is "
            "damaged, or of another architecture than its config.json says; save it again"
        )
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
    if Path(path).is_absolute() and not Path(path).exists():
        raise FileNotFoundError(f"{path} does not exist")
    if not Path(path).exists():
        logger.info("there is no folder %s here: the hub is asked for a model of this name", path)
    location = folder.final if is_run else path
    run = recorded_run(folder) if is_run else None
    base, revision = find_base(location) if is_attached(location) else (location, None)
    with _explain_missing_model(base):
        AutoConfig.from_pretrained(base, revision=revision or "main")
    # Asked once there is a model; what is pushed from here on is not mixed with it.
    revision = find_commit(base, revision=revision) or revision
    lineage = read_lineage(location, revision)
    has_tokenizer = (Path(location) / "tokenizer_config.json").exists()
    return Checkpoint(
        name=name,
        location=location,
        tokenizer=_load_tokenizer(location) if has_tokenizer else _load_tokenizer(base, revision),
        run=run,
        text=lineage.stages[-1].text if lineage.stages else None,
        goes_on=lineage.before is not None and bool(lineage.stages),
        folder=folder if is_run else None,
        base=None if base == location else base,
        revision=revision,
    )


def _load_tokenizer(location: Path | str, revision: str | None = None) -> Any:
    """Return the tokenizer of a checkpoint; raise if there is none."""
    mend = "save the one that it was trained with beside it (tokenizer.save_pretrained)"
    try:
        tokenizer = AutoTokenizer.from_pretrained(location, revision=revision or "main")
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"the model {location} has no tokenizer ({reason}); {mend}") from error
    # Of some families transformers makes one without words where there are no files.
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise ValueError(f"the model {location} has no tokenizer; {mend}")
    return tokenizer


@contextmanager
def _explain_missing_model(path: Path | str) -> Iterator[None]:
    """Say what was expected where transformers finds no model."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no model at {path}: expected a run folder, a saved model, or a name on the hub that "
            f"can be reached ({error})"
        ) from error
