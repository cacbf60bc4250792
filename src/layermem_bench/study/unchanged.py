"""Whether the files and the weights that recorded runs learnt from still lie where they lay.

Runs are found by an id that holds the path of a text, of records and of weights, not their content.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from layermem_bench.config.run import Data, Run
from layermem_bench.data.preparing import cache_folder, prepared_name
from layermem_bench.data.sources import HubDataset, open_source
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.study.records import recorded_about
from layermem_bench.train.learning import prepare_learning
from layermem_bench.train.learning.text import build_text_datasets
from layermem_bench.train.sequences import data_digest, weights_digest
from layermem_bench.train.setup import load_run_tokenizer

logger = logging.getLogger(__name__)
Runs: TypeAlias = Mapping[str, tuple[Run, RunFolder]]
Now: TypeAlias = dict[Any, dict[str, str]]
"""Of what runs learn from, what they would record of it now."""
_MEND = "put back what it learnt from, or train all runs again in another --out"


def check_unchanged(ended: Runs, *, is_complete: bool) -> None:
    """Raise where an ended run, which is used as it is, learnt another text or began with other
    weights than lie at the same path now. What lies nowhere any more is no error.

    ``is_complete``: nothing else is to be trained.
    """
    _check_weights(ended, is_complete)
    _check_texts(ended, is_complete)


def _check_weights(ended: Runs, is_complete: bool) -> None:
    now: dict[tuple[str, str | None], str | None] = {}
    for run, folder in ended.values():
        path = run.model.pretrained or run.host.model
        if path is None or (then := recorded_about(folder).get("weights")) is None:
            continue
        # For results that are whole no hub is asked: its models may move on.
        if is_complete and not Path(path).is_dir():
            continue
        key = path, run.host.revision
        if key not in now:
            now[key] = weights_digest(*key)
        if now[key] not in (None, then):
            raise ValueError(
                f"{folder.path} began with other weights of {path} ({then}) than lie there now "
                f"({now[key]}), so that runs trained now could not be compared with it: {_MEND}"
            )


def _check_texts(ended: Runs, is_complete: bool) -> None:
    now: Now = {}
    told = set[Any]()
    for run, folder in ended.values():
        about = recorded_about(folder)
        if run.task.name:
            _check_records(run, folder, about, now)
            continue
        # Runs of earlier versions name the text in a digest of their blocks alone.
        field = "text" if "text" in about else "data"
        if (then := about.get(field)) is None:
            continue
        key = run.data, run.eval_blocks, run.model.pretrained, run.host.model, run.host.revision
        if key not in now:
            now[key] = _texts_now(run)
        if (is_now := now[key].get(field)) in (None, then):
            continue
        said = f"{folder.path} learnt another text ({then}) than {_names(run.data)} holds now"
        # Each Python has a standard library of its own; recorded results stay what they are.
        if is_complete and run.data.source == "stdlib":
            if key not in told:
                logger.warning("%s (%s)", said, is_now)
            told.add(key)
            continue
        raise ValueError(
            f"{said} ({is_now}), so that runs trained now could not be compared with it: {_MEND}"
        )


def _check_records(run: Run, folder: RunFolder, about: Mapping[str, Any], now: Now) -> None:
    """Raise where files of a task's problems hold others than a run learnt."""
    files = map(str, run.task.fields().values())
    # Other problems are generated.
    if (then := about.get("data")) is None or not any(Path(name).is_file() for name in files):
        return
    key = run.task, run.data, run.model.pretrained, run.host.model, run.host.revision
    if key not in now:
        now[key] = _records_now(run)
    if (is_now := now[key].get("data")) not in (None, then):
        raise ValueError(
            f"{folder.path} learnt other records ({then}) than its files hold now ({is_now}), so "
            f"that runs trained now could not be compared with it: {_MEND}"
        )


def _records_now(run: Run) -> dict[str, str]:
    """Return what a run would record of its records now; nothing where that cannot be told."""
    try:
        learning = prepare_learning(run)
        return {"data": data_digest(learning.train_data, learning.validation_data)}
    except (OSError, ValueError) as error:
        logger.warning("whether recorded runs learnt what their files hold is unknown: %s", error)
        return {}


def _texts_now(run: Run) -> dict[str, str]:
    """Return what a run would record of its text now; nothing where that cannot be told, or only
    by asking a hub or by preparing the text."""
    data = run.data
    try:
        sources = [open_source(name) for name in filter(None, (data.source, data.validation))]
        if any(isinstance(source, HubDataset) for source in sources):
            return {}
        tokenizer = load_run_tokenizer(run)
        found = {"text": (name := prepared_name(data, tokenizer))}
        if (cache_folder(data.cache) / f"{name}-3" / "meta.json").exists():
            found["data"] = data_digest(*build_text_datasets(run, tokenizer))
    except (OSError, ValueError) as error:
        logger.warning(
            "whether recorded runs learnt what %s holds now is not known: %s", _names(data), error
        )
        return {}
    return found


def _names(data: Data) -> str:
    return " and ".join(filter(None, (data.source, data.validation)))
