"""What recorded runs came to, side by side: arms, seeds, curves, costs, and where it is from.

Runs that learnt the same data in the same way of measuring form a setting. In a setting, runs that
differ in the seed alone form an arm.

It does not know: tables, figures, pages.
"""

import hashlib
import json
import logging
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tyro
import yaml

from layermem.config import Run, to_dict
from layermem.efficiency.measuring import ModelSpec
from layermem.experiments import comparison, costs, outcomes, presets
from layermem.experiments.sweep import ERRORS
from layermem.runs import RunFolder, told_apart, write_whole
from layermem.train.run import recorded_run

logger = logging.getLogger(__name__)
# Of a run, what has no say in what it comes to, or is told apart in another way.
_ASIDE = ("preset", "variant", "seed", "data", "task", "compute", "track")
_ASIDE_STEPS = ("log_every", "eval_every", "save_every", "keep")
# What is kept of a validation.
_CURVES = ("step", "tokens", "val_loss", "val_accuracy", "val_steps")
# What other commands write: the file's name in a folder, and what must be in it.
_WRITTEN = {
    "analyze": ("analysis.json", {"asked", "sequences", "models"}),
    "costs": ("costs.json", {"asked", "machine", "precision", "points"}),
}
_DEPTHS = (4, 8, 16, 32, 64, 128)
_WIDTHS = (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write one page about runs: results with intervals, curves, costs, commands."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, or folders of several."""
    against: str | None = None
    """Arm the others are compared with, as the table calls it; None: the first run's, in a folder
    the plain decoder's."""
    analysis: tuple[Path, ...] = ()
    """Folders that layermem analyze has written, shown on the page."""
    costs: Path | None = None
    """File that layermem costs --measure --out has written, shown on the page."""
    out: Path = Path("report")
    """Folder for report.json and the page."""


def run(
    asked: Report, command: str = "", rates: Mapping[str, Mapping[float, float]] | None = None
) -> dict[str, Any]:
    """Gather what is recorded; return it, and write it to report.json.

    ``command``: what asked. ``rates``: validation loss by arm and learning rate tried before.
    """
    records = _records(asked.runs)
    groups = _groups(records)
    settings = [
        _compared({name: records[name] for name in names}, asked.against) for names in groups
    ]
    known = dict.fromkeys(arm for setting in settings for arm in setting["arms"])
    if asked.against is not None and asked.against not in known:
        raise ValueError(f"no arm is called {asked.against!r}; there are {', '.join(known)}")
    runs = {name: _record(found, folder) for name, (found, folder) in records.items()}
    for names in groups:
        _check_solved({name: runs[name]["result"] or {} for name in names})
    result = {
        "asked": json.loads(json.dumps(asdict(asked), default=str)),
        "command": command,
        "runs": runs,
        "settings": settings,
        "rates": _tried(rates or {}),
        "analyses": [_read(path, "analyze") for path in asked.analysis],
        "costs": None if asked.costs is None else _read(asked.costs, "costs"),
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    write_whole(asked.out / "report.json", json.dumps(result, indent=1) + "\n")
    return result


def _tried(rates: Mapping[str, Mapping[float, float]]) -> list[dict[str, Any]]:
    """Return what each arm tried, and took; no loss where a run diverged."""
    return [
        {
            "arm": arm,
            "rates": list(losses),
            "losses": [loss if math.isfinite(loss) else None for loss in losses.values()],
            "taken": comparison.best(losses),
        }
        for arm, losses in rates.items()
    ]


def _records(paths: Iterable[Path]) -> dict[str, tuple[Run, RunFolder]]:
    """Return runs by name: the folder's, with those above it where two folders are called alike."""
    folders: dict[Path, RunFolder] = {}
    for path in paths:
        for folder in _within(path):
            folders.setdefault(folder.path.resolve(), folder)
    if not folders:
        raise ValueError("name at least one run folder")
    names = told_apart([path.parts for path in folders])
    found: dict[str, tuple[Run, RunFolder]] = {}
    ids: dict[str, Path] = {}
    for name, folder in zip(names, folders.values(), strict=True):
        one = _config(folder)
        if one.id in ids:
            raise ValueError(f"{ids[one.id]} and {folder.path} are one run, {one.id}; name one")
        ids[one.id] = folder.path
        found[name] = one, folder
    return found


def _within(path: Path) -> list[RunFolder]:
    """Return the run at a path, or the runs in the folders right below it."""
    if RunFolder(path).config.exists():
        return [RunFolder(path)]
    if not path.is_dir():
        wrong = "is a file" if path.exists() else "does not exist"
        raise FileNotFoundError(f"{path} {wrong}; name a run folder")
    inner = [p for p in sorted(path.iterdir()) if p.is_dir()]
    found = [RunFolder(p) for p in inner if RunFolder(p).config.exists()]
    for folder in inner if found else ():
        if (folder / ERRORS).exists() and not RunFolder(folder).config.exists():
            logger.warning("%s is left out: it failed before its first step", folder)
    if not found:
        raise ValueError(f"{path} is no run folder, and there is none in it (no config.yaml)")
    # The others are compared with what comes first.
    return sorted(found, key=lambda folder: _config(folder).variant != "plain")


def _config(folder: RunFolder) -> Run:
    with _naming(folder):
        return recorded_run(folder)


def _about(folder: RunFolder) -> dict[str, Any]:
    """Return what a run recorded beside its fields."""
    with _naming(folder):
        config = yaml.safe_load(folder.config.read_text(encoding="utf-8"))
        return dict(config.get("about") or {})


def _groups(records: Mapping[str, tuple[Run, RunFolder]]) -> list[list[str]]:
    """Return the runs of each setting.

    A config says where data lay; runs that recorded what it was are compared only where that was
    alike. What has not recorded it (older versions did not) stays with the others.
    """
    groups: dict[str, dict[str, str | None]] = {}
    for name, (found, folder) in records.items():
        groups.setdefault(_setting(found), {})[name] = _about(folder).get("data")
    settings: list[list[str]] = []
    for data in groups.values():
        known = {digest: name for name, digest in reversed(data.items()) if digest}
        if len(known) < 2:
            settings.append(list(data))
            continue
        logger.warning(
            "%s learnt other data under the same config: what lies there has changed between them, "
            "so they are not compared",
            " and ".join(reversed(known.values())),
        )
        for digest in dict.fromkeys(data.values()):
            settings.append([name for name, other in data.items() if other == digest])
    return settings


def _setting(found: Run) -> str:
    """Return what must be alike for losses to be comparable."""
    values = to_dict(found)
    values["data"].pop("cache")
    learnt = values["task"] if found.task.name else values["data"]
    return json.dumps([learnt, found.eval_blocks, _words(found.model.pretrained)], sort_keys=True)


def _words(pretrained: str | None) -> str | None:
    """Return what stands for the tokenizer that a model started with brings; else its name."""
    file = Path(pretrained or "", "tokenizer.json")
    if pretrained is None or not file.exists():
        return pretrained
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _compared(records: Mapping[str, tuple[Run, RunFolder]], against: str | None) -> dict[str, Any]:
    """Return one setting: its arms in the order of their runs, and what they cost."""
    first = next(iter(records.values()))[0]
    arms: dict[str, dict[int, str]] = {}
    for name, label in _labels(_carried_out(records)).items():
        by_seed, seed = arms.setdefault(label, {}), records[name][0].seed
        if seed in by_seed:
            raise ValueError(
                f"{by_seed[seed]} and {name} are both seed {seed} of {label} (they differ in what "
                "does not count, such as how often they log); name one"
            )
        by_seed[seed] = name
    if against in arms:
        arms = {against: arms.pop(against), **arms}
    return {
        "presets": list(dict.fromkeys(found.preset for found, _ in records.values())),
        "task": first.task.name,
        "learnt": {
            **to_dict(first)["task" if first.task.name else "data"],
            "digest": next(
                filter(None, (_about(f).get("data") for _, f in records.values())), None
            ),
        },
        "arms": {arm: [by[seed] for seed in sorted(by)] for arm, by in arms.items()},
        "costs": _costs({arm: records[by[min(by)]] for arm, by in arms.items()}),
    }


def _carried_out(records: Mapping[str, tuple[Run, RunFolder]]) -> dict[str, Run]:
    """Return the runs, in place of "auto" with the arithmetic that it came to, if all recorded it.

    It is bfloat16 on one machine and float32 on another.
    """
    used: dict[str, Any] = {
        name: _about(folder).get("precision") for name, (_, folder) in records.items()
    }
    if not all(used.values()):
        return {name: found for name, (found, _) in records.items()}
    return {
        name: replace(found, compute=replace(found.compute, precision=used[name]))
        for name, (found, _) in records.items()
    }


def _labels(runs: Mapping[str, Run]) -> dict[str, str]:
    """Return what each run's arm is called: its variant, and what else differs between runs."""
    flat = {name: _flat(found) for name, found in runs.items()}
    differing = [
        key
        for key in sorted({key for values in flat.values() for key in values})
        if len({values.get(key) for values in flat.values()}) > 1
    ]
    found = {}
    for name, values in flat.items():
        told = [
            values[key] if key == "model.options" else f"{key.rpartition('.')[2]}={values[key]}"
            for key in differing
        ]
        found[name] = ":".join([runs[name].variant, *(text for text in told if text)])
    return found


def _flat(found: Run) -> dict[str, str]:
    """Return what may tell arms apart, by dotted name."""
    # Of how a run is carried out only the arithmetic may move a loss by more than rounding does.
    flat: dict[str, str] = {"compute.precision": found.compute.precision}
    for key, value in to_dict(found).items():
        if key in (*_ASIDE, *_ASIDE_STEPS):
            continue
        inner = {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {}
        for name, one in (inner or {key: value}).items():
            flat[name] = ":".join(one) if isinstance(one, list) else str(one)
    return flat


def _record(found: Run, folder: RunFolder) -> dict[str, Any]:
    """Return what a run has recorded, and where that comes from."""
    with _naming(folder):
        return _recorded(found, folder)


def _recorded(found: Run, folder: RunFolder) -> dict[str, Any]:
    rows = folder.rows()
    config = yaml.safe_load(folder.config.read_text(encoding="utf-8"))
    speeds = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row]
    counted = [row for row in rows if row.get("flops") and row.get("tokens")]
    per_token = counted[-1]["flops"] / counted[-1]["tokens"] if counted else None
    about = config.get("about") or {}
    run_id = about.get("run_id") or found.id
    ended, diverged = folder.final.exists(), outcomes.divergence(folder, run_id)
    validations = [_validation(row, per_token) for row in rows if "val_loss" in row]
    # JSON has no word for what is not finite; that a run came to it is said by ``diverged``.
    validations = [row for row in validations if all(map(math.isfinite, row.values()))]
    judged = outcomes.measures(folder, found) if ended and validations and not diverged else {}
    return {
        "folder": str(folder.path),
        "run_id": found.id,
        "variant": found.variant,
        "seed": found.seed,
        "steps": rows[-1]["step"] if rows else 0,
        "max_steps": found.max_steps,
        "ended": ended,
        "diverged": diverged,
        "measures": {
            m.name: {"value": value, "is_share": m.is_share} for m, value in judged.items()
        },
        "validations": validations,
        "tokens_per_second": statistics.median(speeds) if speeds else None,
        # Before the final model is there, it may be of an attempt that did not count.
        "result": outcomes.read_result(folder, run_id) if ended else None,
        "about": about,
    }


def _check_solved(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise where models of one setting solved different test problems."""
    counts = {name: result["count"] for name, result in results.items() if "count" in result}
    (first, count), *others = counts.items() or [("", 0)]
    for name, other in others:
        if other != count:
            raise ValueError(
                f"{first} solved {count} test problems and {name} {other}; what they share cannot "
                "be compared: name runs that were tested alike"
            )
    digests = {name: result["problems"] for name, result in results.items() if "problems" in result}
    alike = {digest: name for name, digest in digests.items()}
    if len(alike) > 1:
        raise ValueError(
            f"{' and '.join(alike.values())} solved different test problems, by their result.json; "
            "what they share cannot be compared: name runs that were tested alike"
        )


def _validation(row: Mapping[str, float], flops_per_token: float | None) -> dict[str, float]:
    """Return what is kept of a validation."""
    kept = {name: row[name] for name in _CURVES if name in row}
    return kept | ({"flops": row["tokens"] * flops_per_token} if flops_per_token else {})


def _costs(arms: Mapping[str, tuple[Run, RunFolder]]) -> dict[str, Any]:
    """Return closed-form costs of the arms at their sizes, and of the first arm's at others."""
    models: dict[str, ModelSpec] = {}
    by_sizes: dict[tuple[Any, ...], list[str]] = {}
    for arm, (found, folder) in arms.items():
        with _naming(folder):
            fields = _fields(found, folder)
        models[arm] = found.variant, fields
        by_sizes.setdefault(tuple(fields[name] for name in costs.SIZES), []).append(arm)
    tokens = _tokens(*next(iter(arms.values())))

    def at(names: list[str], layers: int | None = None, width: int | None = None) -> dict[str, Any]:
        other = {
            arm: (models[arm][0], costs.resized(models[arm][1], layers, width))
            for arm in names
            # Chosen for each layer: there is no saying what it would be at another depth.
            if layers is None or models[arm][1].get("router_sources") is None
        }
        return {"preset": arms[names[0]][0].preset, **costs.count(other, tokens)} if other else {}

    points = [at(names) for names in by_sizes.values()]
    names, width = next(iter(by_sizes.values())), points[0]["width"]
    along = {
        "layers": [at(names, layers=depth) for depth in _DEPTHS],
        "width": [at(names, width=times * width) for times in _WIDTHS],
    }
    return {
        "points": points,
        **{axis: [point for point in line if point] for axis, line in along.items()},
        "measure": _would_measure(arms),
    }


def _would_measure(arms: Mapping[str, tuple[Run, RunFolder]]) -> str | None:
    """Return the command that measures the arms; None: their sizes are no preset's."""
    runs = [found for found, _ in arms.values()]
    names = [":".join((found.variant, *found.model.options)) for found in runs]
    preset = runs[0].preset
    if preset not in presets.names() or any(
        found.model.sizes() != presets.lookup(preset).model.sizes() for found in runs
    ):
        return None
    variants = ",".join(dict.fromkeys(names))
    return f"layermem costs {preset} --variants {variants} --measure --out costs.json"


def _fields(found: Run, folder: RunFolder) -> dict[str, Any]:
    """Return a run's model as fields."""
    fields, _ = costs.sizes(found)
    saved = folder.final / "config.json"
    if saved.exists():
        # What it started from, or its tokenizer, may have decided the sizes.
        config = json.loads(saved.read_text(encoding="utf-8"))
        fields |= costs.saved_fields(found.variant, fields, config)
    fields["num_key_value_heads"] = fields["num_key_value_heads"] or fields["num_attention_heads"]
    return fields | found.model.variant_fields()


def _tokens(found: Run, folder: RunFolder) -> int:
    """Return the mean tokens of a sequence: as recorded, else as they are made."""
    last = folder.last()
    if last.get("step") and last.get("tokens"):
        return max(1, round(last["tokens"] / last["step"] / found.optim.batch_size))
    return round(costs.sizes(found)[1])


def _read(path: Path, command: str) -> dict[str, Any]:
    """Read what another command has written: the file itself, or what it is called in a folder."""
    name, keys = _WRITTEN[command]
    file = path / name if path.is_dir() else path
    if not file.exists():
        raise FileNotFoundError(f"{file} does not exist; layermem {command} writes it")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not what layermem {command} writes ({error})") from error
    if not isinstance(found, dict) or not keys <= found.keys():
        raise ValueError(f"{file} is not what layermem {command} writes")
    return found


@contextmanager
def _naming(folder: RunFolder) -> Iterator[None]:
    """Have what is damaged in a run's folder be an error that names it."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{folder.path} holds files that are damaged or of another version "
            f"({type(error).__name__}: {error}); leave it out, or run it again"
        ) from error
