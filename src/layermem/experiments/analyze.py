"""What goes on inside one checkpoint, or two side by side, as numbers by layer.

Entropy of hidden states and of the values attention reads; how well a probe tells words apart by
them, and where words lie on a plane; what routers read; what the model costs.

It does not know: figures, pages.
"""

import itertools
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.progress import Progress
from transformers import AutoModelForCausalLM, AutoTokenizer

from layermem.analysis.capture import Kind, capture, sequences_at_once
from layermem.analysis.embedding import embed
from layermem.analysis.entropy import Moments, matrix_entropy
from layermem.analysis.routing import circuits, head_heatmaps, mean_heatmap, readings
from layermem.analysis.separability import separability
from layermem.analysis.shelf import Shelf
from layermem.analysis.words import Place, places
from layermem.config import Run, Task
from layermem.data.sources import open_source
from layermem.models.decoder import DecoderForCausalLM
from layermem.models.seams import WeightsUnknown
from layermem.runs import RunFolder, told_apart, write_whole
from layermem.tasks.registry import lookup as lookup_task
from layermem.train.run import load_run

logger = logging.getLogger(__name__)
# Sequences in a batch, at most.
_BATCH = 16
# Seeds of problems that are gone through in search of rare words.
_SEEDS = 50
# Kinds that are looked at, by the names of ``Captured``.
_KINDS: tuple[Kind, ...] = ("hidden", "routed")


@dataclass(frozen=True, kw_only=True)
class Analyze:
    """Look inside a checkpoint, ours or any Hugging Face decoder, or at two side by side."""

    checkpoint: tyro.conf.Positional[str]
    """Run folder, folder of a saved model, or hub name."""
    against: str | None = None
    """A second one, shown beside it; its tokenizer must be the same."""
    text: str | None = None
    """Text to read, as in --data.source; None: problems of the run's own task, else stdlib."""
    words: tuple[str, ...] = ("is", "are", "was", "were")
    """Words that a probe is to tell apart."""
    each: int = 200
    """Occurrences of each word (the paper: 1668)."""
    documents: int = 100_000
    """Documents of a text that are read in search of them, at most."""
    sequences: int = 64
    """Sequences whose entropy is taken."""
    length: int = 128
    """Tokens of a sequence, at most."""
    alpha: float = 1.0
    """Order of the entropy (the paper's code: 0.5)."""
    out: Path = Path("analysis")
    """Folder for analysis.json and the page."""
    figure: Path | None = None
    """File (svg, png, pdf) for one figure of it all, beside the page."""
    seed: int = 0
    """Seed of folds, layouts and problems."""

    def __post_init__(self) -> None:
        for name, least in (("length", 2), ("sequences", 1), ("each", 1), ("documents", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"--{name} must be at least {least}, got {getattr(self, name)}")
        if not self.alpha > 0:
            raise ValueError(f"--alpha must be positive, got {self.alpha}")


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """A model to look at."""

    name: str
    model: Any
    tokenizer: Any
    run: Run | None


def run(asked: Analyze, command: str = "") -> dict[str, Any]:
    """Look; return, and write to analysis.json, what was found. ``command``: what asked for it."""
    subjects = _subjects([path for path in (asked.checkpoint, asked.against) if path is not None])
    where, source = _texts(asked, subjects[0])
    texts = list(itertools.islice(source, asked.sequences))
    if not texts:
        raise ValueError(
            f"there is no sequence of {asked.length} tokens in {where}; lower --length"
        )
    found_at = _find(asked, subjects[0])
    result: dict[str, Any] = {
        "asked": json.loads(json.dumps(asdict(asked), default=str)),
        "command": command,
        "sequences": len(texts),
        "models": {},
    }
    for subject in subjects:
        logger.info("looking at %s", subject.name)
        result["models"][subject.name] = {
            "about": _about(subject),
            "entropy": _entropy(subject, texts, asked),
            **_words(subject, found_at, asked),
            **_routing(subject),
        }
    asked.out.mkdir(parents=True, exist_ok=True)
    write_whole(asked.out / "analysis.json", json.dumps(result, indent=1) + "\n")
    return result


def _subjects(paths: Sequence[str]) -> list[_Subject]:
    """Load one checkpoint, or two that may be laid side by side."""
    # What is no path is a name on the hub.
    ways = [Path(path).resolve().parts if Path(path).exists() else (path,) for path in paths]
    if len(set(ways)) < len(ways):
        raise ValueError(f"{' and '.join(paths)} are one; give two")
    subjects = [_load(path, name) for path, name in zip(paths, told_apart(ways), strict=True)]
    if len(subjects) == 2:
        _same_tokens(*subjects)
    return subjects


def _load(path: str, name: str) -> _Subject:
    """Load a run's final model, or a saved one."""
    folder = RunFolder(path)
    is_run = folder.config.exists()
    if is_run and not folder.final.exists():
        raise ValueError(f"{path} is a run that has not ended; let it end, or name a checkpoint")
    if Path(path).is_absolute() and not Path(path).exists():
        raise FileNotFoundError(f"{path} does not exist")
    where = folder.final if is_run else path
    try:
        model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no model at {path}: it is no run folder, no saved model, and no hub name that can be "
            f"reached ({error})"
        ) from error
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = AutoTokenizer.from_pretrained(where)
    found = load_run(folder.config) if is_run else None
    return _Subject(name=name, model=model, tokenizer=tokenizer, run=found)


def _same_tokens(first: _Subject, second: _Subject) -> None:
    if first.tokenizer.get_vocab() != second.tokenizer.get_vocab():
        raise ValueError(
            f"{first.name} and {second.name} have different tokenizers, so what they hold at one "
            "token cannot be laid side by side; analyze them one by one"
        )


def _texts(asked: Analyze, subject: _Subject) -> tuple[str, Iterator[str]]:
    """Return what is read, by name, and as texts that are sequences."""
    task = Task() if subject.run is None else subject.run.task
    if asked.text is None and task.name is not None:
        return f"the different test problems of {subject.name}", _problems(task.name, task)
    source = asked.text or "stdlib"
    where = f"{source} (read up to --documents {asked.documents})"
    documents = itertools.islice(open_source(source, streaming=True), asked.documents)
    return where, _pieces(documents, asked.length, subject.tokenizer)


def _problems(name: str, task: Task) -> Iterator[str]:
    """Yield test problems with their solutions, each once."""
    kind, seen = lookup_task(name), set[int]()
    # Rare words want many: other seeds bring more problems of the same split, if there are more.
    for more in range(_SEEDS):
        problems = kind.problems("test", task.test, task.seed + more, **task.fields())
        texts = dict.fromkeys(f"{problem.prompt} {problem.solution}" for problem in problems)
        new = [text for text in texts if hash(text) not in seen]
        if not new:
            return
        seen.update(map(hash, new))
        yield from new


def _pieces(documents: Iterable[str], length: int, tokenizer: Any) -> Iterator[str]:
    """Yield documents cut into pieces of so many tokens."""
    for document in documents:
        encoded = tokenizer(
            document, return_offsets_mapping=True, add_special_tokens=False, verbose=False
        )
        offsets = encoded["offset_mapping"]
        for start in range(0, len(offsets) - length + 1, length):
            yield document[offsets[start][0] : offsets[start + length - 1][1]]


def _find(asked: Analyze, subject: _Subject) -> list[Place]:
    """Return where the words stand."""
    where, texts = _texts(asked, subject)
    return places(
        texts, subject.tokenizer, asked.words, asked.each, longest=asked.length, where=where
    )


def _batches(
    subject: _Subject, texts: Sequence[str], length: int, what: str
) -> Iterator[dict[str, torch.Tensor]]:
    """Encode texts, padded on the right, cut at ``length`` tokens; show how far it is."""
    tokenizer = subject.tokenizer
    end = tokenizer.eos_token_id
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else end
    rows = min(_BATCH, sequences_at_once(subject.model, length))
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for start in progress.track(range(0, len(texts), rows), description=what):
            batch = list(texts[start : start + rows])
            ids = [row[:length] for row in tokenizer(batch, add_special_tokens=False)["input_ids"]]
            longest = max(map(len, ids))
            yield {
                "input_ids": torch.tensor([[*r, *[padding] * (longest - len(r))] for r in ids]),
                "attention_mask": torch.tensor(
                    [[1] * len(r) + [0] * (longest - len(r)) for r in ids]
                ),
            }


def _entropy(subject: _Subject, texts: Sequence[str], asked: Analyze) -> dict[str, Any]:
    """Return mean and deviation over sequences, by kind and layer; features are standardised.

    Two passes, so that no more than a batch is held: first the moments, then the entropies.
    """
    moments: dict[tuple[Kind, int], Moments] = {}
    for got in capture(
        subject.model, _batches(subject, texts, asked.length, "moments"), kinds=_KINDS
    ):
        for kind in _KINDS:
            for layer, array in enumerate(getattr(got, kind)):
                moments.setdefault((kind, layer), Moments()).add(array[got.mask])
    entropies: dict[tuple[Kind, int], list[float]] = {key: [] for key in moments}
    for got in capture(
        subject.model, _batches(subject, texts, asked.length, "entropy"), kinds=_KINDS
    ):
        for kind, layer in moments:
            array = getattr(got, kind)[layer]
            for tokens, mask in zip(array, got.mask, strict=True):
                if mask.sum() < 2:
                    raise ValueError("entropy needs sequences of at least 2 tokens")
                scaled = moments[kind, layer].standardise(tokens[mask])
                entropies[kind, layer].append(matrix_entropy(scaled, asked.alpha))
    depth = 1 + max(layer for _, layer in moments)
    return {
        kind: {
            "mean": [float(np.mean(entropies[kind, i])) for i in range(depth)],
            "deviation": [float(np.std(entropies[kind, i])) for i in range(depth)],
        }
        for kind in _KINDS
    }


def _words(subject: _Subject, found_at: Sequence[Place], asked: Analyze) -> dict[str, Any]:
    """Return how well probes tell the words apart, and layouts, by kind and layer."""
    by_text: dict[str, list[tuple[int, int]]] = {}
    for place in found_at:
        by_text.setdefault(place.text, []).append((place.token, place.word))
    labels: list[int] = []
    rows = iter(by_text.values())
    with Shelf() as shelf:
        batches = _batches(subject, list(by_text), asked.length, "words")
        for got in capture(subject.model, batches, kinds=_KINDS):
            for i, row in enumerate(itertools.islice(rows, len(got.ids))):
                for token, word in row:
                    for kind in _KINDS:
                        for layer, array in enumerate(getattr(got, kind)):
                            shelf.put((kind, layer), array[i, token])
                    labels.append(word)
        depth = subject.model.config.num_hidden_layers
        return {
            "separability": {
                probe: {
                    kind: _probed(shelf, kind, depth, labels, probe, asked.seed) for kind in _KINDS
                }
                for probe in ("paper", "converged")
            },
            "layout": {
                "labels": labels,
                "layers": {
                    layer: embed(shelf.get(("routed", layer)), seed=asked.seed).round(3).tolist()
                    for layer in range(depth)
                },
            },
        }


def _probed(
    shelf: Shelf,
    kind: str,
    depth: int,
    labels: Sequence[int],
    probe: Any,
    seed: int,
) -> dict[str, Any]:
    found = [
        separability(shelf.get((kind, layer)), np.array(labels), probe=probe, seed=seed)
        for layer in range(depth)
    ]
    return {
        "mean": [one.mean for one in found],
        "deviation": [one.deviation for one in found],
        "shuffled": [one.shuffled for one in found],
        "chance": found[0].chance,
    }


def _routing(subject: _Subject) -> dict[str, Any]:
    """Return what routers read, or why that is not known; nothing for a model that has none."""
    if not isinstance(subject.model, DecoderForCausalLM):
        return {}
    try:
        heatmap = mean_heatmap(subject.model)
    except WeightsUnknown as error:
        logger.info("what %s reads is left out: %s", subject.name, error)
        return {"routing_unknown": str(error)}
    if np.array_equal(heatmap, np.eye(len(heatmap))):
        return {}
    ways = circuits(heatmap) if len(heatmap) > 2 else []
    return {
        "routing": {
            "heatmap": heatmap.tolist(),
            "heads": head_heatmaps(subject.model).tolist(),
            "readings": [asdict(reading) for reading in readings(heatmap)],
            "circuits": [asdict(circuit) for circuit in ways],
        }
    }


def _about(subject: _Subject) -> dict[str, Any]:
    model = subject.model
    return {
        "class": type(model).__name__,
        "layers": model.config.num_hidden_layers,
        "width": model.config.hidden_size,
        "parameters": model.num_parameters(),
        "run_id": None if subject.run is None else subject.run.id,
    }
