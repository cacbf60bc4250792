"""What goes on inside one checkpoint, or two side by side, as numbers by layer.

Entropy of hidden states and of the values attention reads; how well a probe tells words apart by
them, and where words lie on a plane; what routers read; what the model costs.

It does not know: figures, pages.
"""

import itertools
import json
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.progress import Progress
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from layermem.analysis.capture import Kind, capture, sequences_at_once
from layermem.analysis.embedding import embed
from layermem.analysis.entropy import Moments, matrix_entropy
from layermem.analysis.routing import circuits, head_heatmaps, mean_heatmap, readings
from layermem.analysis.separability import FOLDS, separability
from layermem.analysis.shelf import Shelf
from layermem.analysis.words import Place, check_known, pattern, places
from layermem.config import Run, Task
from layermem.data.sources import open_source
from layermem.models.causal_lm import DecoderForCausalLM
from layermem.models.seams import WeightsUnknown
from layermem.runs import RunFolder, told_apart, write_whole
from layermem.tasks.registry import lookup as lookup_task
from layermem.train.run import recorded_run

logger = logging.getLogger(__name__)
# Sequences in a batch, at most.
_BATCH = 16
# Seeds of problems that are gone through in search of rare words.
_SEEDS = 50
# What is told apart in a text.
_WORDS = ("is", "are", "was", "were")
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
    words: tuple[str, ...] | None = None
    """Words that a probe is to tell apart; None: numbers or names where a task's problems are read,
    is, are, was and were in a text."""
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
    where: Path | str
    tokenizer: Any
    run: Run | None
    model: Any = None
    """None until it is loaded, which comes after all that may be refused."""


def run(asked: Analyze, command: str = "") -> dict[str, Any]:
    """Look; return, and write to analysis.json, what was found. ``command``: what asked for it."""
    opened = _subjects([path for path in (asked.checkpoint, asked.against) if path is not None])
    asked = _worded(asked, opened[0])
    where, source = _texts(asked, opened[0])
    texts = list(itertools.islice(source, asked.sequences))
    if not texts:
        raise ValueError(
            f"there is no sequence of {asked.length} tokens in {where}; lower --length"
        )
    found_at = _find(asked, opened[0])
    if len(opened) == 2:
        _same_pieces(
            opened[0], opened[1], [*texts, *dict.fromkeys(place.text for place in found_at)]
        )
    subjects = [replace(subject, model=_model(subject)) for subject in opened]
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
    """Open one checkpoint, or two that may be laid side by side; no weights are read."""
    # What is no path is a name on the hub.
    ways = [Path(path).resolve().parts if Path(path).exists() else (path,) for path in paths]
    if len(set(ways)) < len(ways):
        raise ValueError(f"{' and '.join(paths)} are one; give two")
    subjects = [_open(path, name) for path, name in zip(paths, told_apart(ways), strict=True)]
    if len(subjects) == 2:
        _same_tokens(*subjects)
    return subjects


def _open(path: str, name: str) -> _Subject:
    """Find a run's final model, or a saved one."""
    folder = RunFolder(path)
    is_run = folder.config.exists()
    if is_run and not folder.final.exists():
        raise ValueError(f"{path} is a run that has not ended; let it end, or name a checkpoint")
    if Path(path).is_absolute() and not Path(path).exists():
        raise FileNotFoundError(f"{path} does not exist")
    where = folder.final if is_run else path
    with _no_model(path):
        AutoConfig.from_pretrained(where)
    tokenizer = AutoTokenizer.from_pretrained(where)
    found = recorded_run(folder) if is_run else None
    return _Subject(name=name, where=where, tokenizer=tokenizer, run=found)


def _model(subject: _Subject) -> Any:
    with _no_model(subject.where):
        model, found = AutoModelForCausalLM.from_pretrained(
            subject.where, dtype=torch.float32, output_loading_info=True
        )
    # The head is not looked at; anything else would be random numbers under the model's name.
    inner = f"{model.base_model_prefix}."
    if missing := sorted(name for name in found["missing_keys"] if name.startswith(inner)):
        raise ValueError(
            f"{subject.where} lacks {len(missing)} of the model's weights, {missing[0]} the first: "
            "it is damaged, or of another architecture than its config.json says; save it again"
        )
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def _no_model(path: Path | str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no model at {path}: it is no run folder, no saved model, and no hub name that can be "
            f"reached ({error})"
        ) from error


def _same_tokens(first: _Subject, second: _Subject) -> None:
    if first.tokenizer.get_vocab() != second.tokenizer.get_vocab():
        raise ValueError(
            f"{first.name} and {second.name} have different tokenizers, so what they hold at one "
            "token cannot be laid side by side; analyze them one by one"
        )


def _same_pieces(first: _Subject, second: _Subject, texts: Sequence[str]) -> None:
    """Raise where one vocabulary is used in two ways: words would stand at other tokens."""
    for text in texts:
        ours, theirs = (
            subject.tokenizer(text, add_special_tokens=False)["input_ids"]
            for subject in (first, second)
        )
        if ours != theirs:
            raise ValueError(
                f"{first.name} and {second.name} cut the same text into different tokens, of one "
                "vocabulary, so what they hold at one token cannot be laid side by side; analyze "
                "them one by one"
            )


def _task(asked: Analyze, subject: _Subject) -> Task | None:
    """Return the task whose problems are read; None: a text is."""
    task = Task() if subject.run is None else subject.run.task
    return task if asked.text is None and task.name is not None else None


def _worded(asked: Analyze, subject: _Subject) -> Analyze:
    """Return it with its words, which must be such as can occur, and often enough."""
    task, words = _task(asked, subject), asked.words
    if words is None:
        words = lookup_task(str(task.name)).words(**task.fields()) if task else _WORDS
    pattern(words)
    if len(words) < 2 or asked.each < FOLDS:
        raise ValueError(
            f"a probe needs at least two --words and of --each at least {FOLDS}, one for each of "
            f"its folds; got {', '.join(words)} and {asked.each}"
        )
    check_known(words, subject.tokenizer, f"what the tokenizer of {subject.name} writes")
    if task is not None:
        kind, where = lookup_task(str(task.name)), f"the test problems of {subject.name}"
        check_known(words, kind.tokenizer(**task.fields()), where)
        _check_frequent(words, asked.each, next(_problems_by_seed(task)), where)
    return replace(asked, words=words)


def _check_frequent(words: Sequence[str], each: int, texts: Sequence[str], where: str) -> None:
    """Raise where all seeds together would hardly bring enough of a word, by those of the first."""
    wanted = pattern(words)
    counts = Counter(match for text in texts for match in wanted.findall(text))
    for word in words:
        # A rate above this would have brought so few in one time of a thousand.
        most = counts[word] + 3 * math.sqrt(counts[word]) + 7
        if _SEEDS * most < each:
            raise ValueError(
                f"{word!r} occurs {counts[word]} times in the first {len(texts):,} of {where}: "
                f"{each} would take too many; ask for fewer (--each), or for other --words"
            )


def _texts(asked: Analyze, subject: _Subject) -> tuple[str, Iterator[str]]:
    """Return what is read, by name, and as texts that are sequences."""
    if task := _task(asked, subject):
        return f"the different test problems of {subject.name}", _problems(task)
    source = asked.text or "stdlib"
    where = f"{source} (read up to --documents {asked.documents})"
    documents = itertools.islice(open_source(source, streaming=True), asked.documents)
    return where, _pieces(documents, asked.length, subject.tokenizer)


def _problems(task: Task) -> Iterator[str]:
    """Yield test problems with their solutions, each once."""
    seen = set[int]()
    for texts in _problems_by_seed(task):
        new = [text for text in texts if hash(text) not in seen]
        if not new:
            return
        seen.update(map(hash, new))
        yield from new


def _problems_by_seed(task: Task) -> Iterator[list[str]]:
    """Yield the different test problems of each seed."""
    kind = lookup_task(str(task.name))
    # Rare words want many: other seeds bring more problems of the same split, if there are more.
    for more in range(_SEEDS):
        problems = kind.problems("test", task.test, task.seed + more, **task.fields())
        yield list(dict.fromkeys(f"{problem.prompt} {problem.solution}" for problem in problems))


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
        texts, subject.tokenizer, asked.words or (), asked.each, longest=asked.length, where=where
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
