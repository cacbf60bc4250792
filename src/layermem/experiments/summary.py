"""What recorded runs came to, side by side: arms, seeds, curves, costs, and where it is from.

Runs that learnt the same data in the same way of measuring form a setting. In a setting, runs that
differ in the seed alone form an arm.

It does not know: tables, figures, pages.
"""

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from layermem.config import Run, to_dict
from layermem.efficiency.measuring import Model
from layermem.experiments import costs
from layermem.experiments.comparison import measures
from layermem.runs import RunFolder, write_whole
from layermem.train.run import load_run

# Of a run, what has no say in what it comes to, or is told apart in another way.
_ASIDE = ("preset", "variant", "seed", "data", "task", "compute", "track")
_ASIDE_STEPS = ("log_every", "eval_every", "save_every", "keep")
# What is kept of a validation.
_CURVES = ("step", "tokens", "val_loss", "val_accuracy", "val_steps")
_DEPTHS = (4, 8, 16, 32, 64, 128)
_WIDTHS = (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write one page about runs: results with intervals, curves, costs, commands."""

    runs: tuple[Path, ...]
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


def run(asked: Report, command: str = "") -> dict[str, Any]:
    """Gather what is recorded; return it, and write it to report.json. ``command``: what asked."""
    records = _records(asked.runs)
    groups: dict[str, list[str]] = {}
    for name, (found, _) in records.items():
        groups.setdefault(_setting(found), []).append(name)
    settings = [_compared({name: records[name] for name in names}) for names in groups.values()]
    if asked.against is not None:
        _put_first(asked.against, settings)
    result = {
        "asked": json.loads(json.dumps(asdict(asked), default=str)),
        "command": command,
        "runs": {name: _record(found, folder) for name, (found, folder) in records.items()},
        "settings": settings,
        "analyses": [_read(path, "analysis.json", "analyze") for path in asked.analysis],
        "costs": None if asked.costs is None else _read(asked.costs, "costs.json", "costs"),
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    write_whole(asked.out / "report.json", json.dumps(result, indent=1) + "\n")
    return result


def _records(paths: Iterable[Path]) -> dict[str, tuple[Run, RunFolder]]:
    """Return runs by name: the folder's, or its whole path where two folders are called alike."""
    folders: dict[Path, RunFolder] = {}
    for path in paths:
        for folder in _within(path):
            folders.setdefault(folder.path.resolve(), folder)
    if not folders:
        raise ValueError("name at least one run folder")
    names = [path.name for path in folders]
    found: dict[str, tuple[Run, RunFolder]] = {}
    ids: dict[str, Path] = {}
    for path, folder in folders.items():
        one = load_run(folder.config)
        if one.id in ids:
            raise ValueError(f"{ids[one.id]} and {folder.path} are one run, {one.id}; name one")
        ids[one.id] = folder.path
        found[path.name if names.count(path.name) == 1 else str(folder.path)] = one, folder
    return found


def _within(path: Path) -> list[RunFolder]:
    """Return the run at a path, or the runs in the folders right below it."""
    if RunFolder(path).config.exists():
        return [RunFolder(path)]
    if not path.is_dir():
        raise FileNotFoundError(f"{path} does not exist; name a run folder")
    found = [RunFolder(p) for p in sorted(path.iterdir()) if RunFolder(p).config.exists()]
    if not found:
        raise ValueError(f"{path} is no run folder, and there is none in it (no config.yaml)")
    # The others are compared with what comes first.
    return sorted(found, key=lambda folder: load_run(folder.config).variant != "plain")


def _setting(found: Run) -> str:
    """Return what must be alike for losses to be comparable."""
    values = to_dict(found)
    values["data"].pop("cache")
    learnt = values["task"] if found.task.name else values["data"]
    return json.dumps([learnt, found.eval_blocks], sort_keys=True)


def _compared(records: Mapping[str, tuple[Run, RunFolder]]) -> dict[str, Any]:
    """Return one setting: its arms in the order of their runs, and what they cost."""
    first = next(iter(records.values()))[0]
    arms: dict[str, list[str]] = {}
    for name, label in _labels({name: found for name, (found, _) in records.items()}).items():
        arms.setdefault(label, []).append(name)
    return {
        "preset": first.preset,
        "task": first.task.name,
        "learnt": to_dict(first)["task" if first.task.name else "data"],
        "arms": {
            arm: sorted(names, key=lambda name: records[name][0].seed)
            for arm, names in arms.items()
        },
        "costs": _costs({arm: records[names[0]] for arm, names in arms.items()}),
    }


def _put_first(arm: str, settings: Iterable[dict[str, Any]]) -> None:
    """Make an arm what the others are compared with, in the settings that have it."""
    names = list(dict.fromkeys(name for setting in settings for name in setting["arms"]))
    if arm not in names:
        raise ValueError(f"no arm is called {arm!r}; there are {', '.join(names)}")
    for setting in settings:
        if arm in setting["arms"]:
            setting["arms"] = {arm: setting["arms"].pop(arm), **setting["arms"]}


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
    flat = {}
    for key, value in to_dict(found).items():
        if key in (*_ASIDE, *_ASIDE_STEPS):
            continue
        inner = {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {}
        for name, one in (inner or {key: value}).items():
            flat[name] = ":".join(one) if isinstance(one, list) else str(one)
    return flat


def _record(found: Run, folder: RunFolder) -> dict[str, Any]:
    """Return what a run has recorded, and where that comes from."""
    rows = folder.rows()
    config = yaml.safe_load(folder.config.read_text(encoding="utf-8"))
    speeds = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row]
    counted = [row for row in rows if row.get("flops") and row.get("tokens")]
    per_token = counted[-1]["flops"] / counted[-1]["tokens"] if counted else None
    validations = [{k: row[k] for k in _CURVES if k in row} for row in rows if "val_loss" in row]
    for row in validations if per_token else ():
        row["flops"] = row["tokens"] * per_token
    judged = measures(folder) if validations else {}
    result = None
    if folder.result.exists():
        result = json.loads(folder.result.read_text(encoding="utf-8"))
    return {
        "folder": str(folder.path),
        "run_id": found.id,
        "variant": found.variant,
        "seed": found.seed,
        "steps": rows[-1]["step"] if rows else 0,
        "max_steps": found.max_steps,
        "ended": folder.final.exists(),
        "measures": {
            m.name: {"value": value, "is_share": m.is_share} for m, value in judged.items()
        },
        "validations": validations,
        "tokens_per_second": statistics.median(speeds) if speeds else None,
        "result": result,
        "about": config.get("about", {}),
    }


def _costs(arms: Mapping[str, tuple[Run, RunFolder]]) -> dict[str, Any]:
    """Return closed-form costs of the arms at their sizes, and of the first arm's at others."""
    models = {}
    tokens = 0
    for arm, (found, folder) in arms.items():
        fields, length = _fields(found, folder)
        tokens = tokens or round(length)
        models[arm] = (found.variant, fields)
    by_sizes: dict[tuple[Any, ...], dict[str, Model]] = {}
    for arm, (variant, fields) in models.items():
        key = tuple(fields[name] for name in costs.SIZES)
        by_sizes.setdefault(key, {})[arm] = (variant, fields)
    named = {"preset": next(iter(arms.values()))[0].preset}
    points = [{**named, **costs.count(group, tokens)} for group in by_sizes.values()]

    def at(layers: int | None = None, width: int | None = None) -> dict[str, Any]:
        group = next(iter(by_sizes.values()))
        other = {
            arm: (variant, costs.resized(fields, layers, width))
            for arm, (variant, fields) in group.items()
            # Chosen for each layer: there is no saying what it would be at another depth.
            if layers is None or "router_sources" not in fields
        }
        return {**named, **costs.count(other, tokens)}

    width = points[0]["width"]
    return {
        "points": points,
        "layers": [at(layers=depth) for depth in _DEPTHS],
        "width": [at(width=times * width) for times in _WIDTHS],
    }


def _fields(found: Run, folder: RunFolder) -> tuple[dict[str, Any], float]:
    """Return a run's model as fields, and the tokens of a sequence."""
    fields, length = costs.sizes(found)
    saved = folder.final / "config.json"
    if saved.exists():
        # What it started from, or its tokenizer, may have decided the sizes.
        config = json.loads(saved.read_text(encoding="utf-8"))
        fields |= {name: config[name] for name in fields if name in config}
    return fields | found.model.variant_fields(), length


def _read(path: Path, name: str, command: str) -> dict[str, Any]:
    """Read what another command has written: the file itself, or ``name`` in a folder."""
    file = path / name if path.is_dir() else path
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{file} does not exist; layermem {command} writes it") from error
    except (json.JSONDecodeError, ValueError) as error:
        raise ValueError(f"{file} is not what layermem {command} writes ({error})") from error
