"""Measure checkpoints side by side, whatever the tasks ask for, and write eval.json.

A kind of task (losses, grammar, problems, benchmarks) is one function: it is given the opened
checkpoints, the names of its tasks and the options, and returns a part of the result.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from layermem_base.files import write_atomically
from layermem_bench.config.run import Run
from layermem_bench.config.typed_dicts import to_json
from layermem_bench.evals.benchmark_records import find_tasks
from layermem_bench.evals.benchmarks import measure_benchmarks
from layermem_bench.evals.grammar import measure_grammar
from layermem_bench.evals.losses import measure_losses
from layermem_bench.evals.result import EvalOptions, EvalResult, Part, Tell
from layermem_bench.evals.solving import measure_problems
from layermem_bench.run.folder import RunFolder
from layermem_bench.run.trained_models import Checkpoint, open_checkpoints
from layermem_bench.tasks.registry import all_tasks

Group = Callable[[Mapping[str, tuple[Run, RunFolder]]], dict[str, tuple[str, ...]]]
"""Returns the models of each arm, by seed, given each model's run."""
Measure = Callable[[Sequence[Checkpoint], Sequence[str], EvalOptions, Tell], Part]
# In the order of the result.
_KINDS: tuple[Measure, ...] = (
    measure_losses,
    measure_grammar,
    measure_problems,
    measure_benchmarks,
)


def evaluate_checkpoints(
    checkpoints: Sequence[str],
    options: EvalOptions,
    out: Path,
    *,
    command: str = "",
    tell: Tell = lambda what, done, total: None,
    group: Group = lambda runs: {},
) -> EvalResult:
    """Measure checkpoints; return the result, written to eval.json in ``out``.

    A checkpoint is a run folder, the folder of a saved model or a hub name. ``group`` is asked if
    all are runs; without it there are no means over seeds.
    """
    by_kind = _tasks_by_kind(checkpoints, options)
    opened = open_checkpoints(checkpoints, one_vocabulary=False)
    runs = {e.name: (e.run, e.folder) for e in opened if e.run is not None and e.folder is not None}
    result = EvalResult(
        command=command,
        options=options,
        models=tuple(each.name for each in opened),
        parts=(),
        arms=group(runs) if len(runs) == len(opened) else {},
    )
    out.mkdir(parents=True, exist_ok=True)
    for measure, names in by_kind.items():
        part = measure(opened, names, options, tell)
        result = replace(result, parts=(*result.parts, part))
        # Each time, so that one that fails takes no other with it.
        write_atomically(out / "eval.json", to_json(result))
    return result


def _tasks_by_kind(checkpoints: Sequence[str], options: EvalOptions) -> dict[Measure, list[str]]:
    """Return the tasks of each kind that has some."""
    if not checkpoints or not options.tasks or {"ppl", "blimp"} & {*options.tasks}:
        raise ValueError(
            "name checkpoints and tasks: layermem eval CHECKPOINT ... --tasks ppl=FILE blimp=DIR "
            "arithmetic arc_easy"
        )
    by_kind: dict[Measure, list[str]] = {measure: [] for measure in _KINDS}
    prefixes = {"ppl": measure_losses, "blimp": measure_grammar}
    for task in options.tasks:
        prefix, _, place = task.partition("=")
        own = measure_problems if task in all_tasks() else measure_benchmarks
        by_kind[prefixes.get(prefix, own)].append(place if prefix in prefixes else task)
    # Unknown names are refused before anything is measured.
    find_tasks(by_kind[measure_benchmarks])
    return {measure: names for measure, names in by_kind.items() if names}
