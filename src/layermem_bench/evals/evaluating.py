"""Measure checkpoints side by side, whatever the tasks ask for, and write eval.json.

Each kind of task is made ready, which refuses what can be refused without a model, and then
measured: every model is loaded, is given the items, and becomes a part of the result.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from layermem_base.files import write_atomically
from layermem_bench.analysis.checkpoints import open_checkpoints
from layermem_bench.config.run import Run
from layermem_bench.evals import Tell
from layermem_bench.evals.benchmarks import prepare_benchmarks
from layermem_bench.evals.grammar import prepare_grammar
from layermem_bench.evals.losses import prepare_losses, settle_windows
from layermem_bench.evals.solving import prepare_problems
from layermem_bench.results.eval import EvalOptions, EvalResult
from layermem_bench.results.files import to_json
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.tasks.registry import all_tasks

Runs = Mapping[str, tuple[Run, RunFolder]]
"""Name of each model to the run that trained it."""
Arms = dict[str, tuple[str, ...]]
"""Name of each arm to its models, by seed."""
_TEXTS, _PAIRS = "ppl=FILE", "blimp=DIR"
_PROBLEMS = "tasks that models were trained on (arithmetic)"
_BENCHMARKS = "evaluation tasks (arc_easy)"
_PREFIXES = {"ppl": _TEXTS, "blimp": _PAIRS}
# In the order of the result: what makes a kind ready, and options that only it has.
_KINDS: Mapping[str, tuple[Callable[..., Callable[[], Any]], tuple[str, ...]]] = {
    _TEXTS: (prepare_losses, ("field", "context", "stride", "ablate")),
    _PAIRS: (prepare_grammar, ("probe",)),
    _PROBLEMS: (prepare_problems, ("split", "seed", "task_options")),
    _BENCHMARKS: (prepare_benchmarks, ("shots", "seeds", "records", "truncate", "max_length")),
}


def evaluate_checkpoints(
    checkpoints: Sequence[str],
    options: EvalOptions,
    out: Path,
    *,
    command: str = "",
    tell: Tell = lambda what, done, total: None,
    group: Callable[[Runs], Arms] = lambda runs: {},
) -> EvalResult:
    """Measure checkpoints; return the result, written to eval.json in ``out``.

    A checkpoint is a run folder, the folder of a saved model or a hub name. Answers to evaluation
    tasks are kept in ``out``, so that a second start goes on where the first one ended. ``group``
    returns the models of each arm, where all are runs; without it there are no means over seeds.
    """
    by_kind = _tasks_by_kind(checkpoints, options)
    opened = open_checkpoints(checkpoints, one_vocabulary=False)
    if texts := by_kind[_TEXTS]:
        options = settle_windows(opened, texts, options)
    measures = [
        _KINDS[kind][0](opened, names, options, out, tell)
        for kind, names in by_kind.items()
        if names
    ]
    models = tuple(each.name for each in opened)
    runs = {e.name: (e.run, e.folder) for e in opened if e.run is not None and e.folder is not None}
    arms = group(runs) if len(runs) == len(opened) else {}
    result = EvalResult(command=command, options=options, models=models, parts=(), arms=arms)
    out.mkdir(parents=True, exist_ok=True)
    for measure in measures:
        result = replace(result, parts=(*result.parts, measure()))
        # Each time, so that one that fails takes no other with it.
        write_atomically(out / "eval.json", to_json(result))
    return result


def _tasks_by_kind(checkpoints: Sequence[str], options: EvalOptions) -> dict[str, list[str]]:
    """Return the tasks of each kind; refuse options that would have no effect."""
    if not checkpoints or not options.tasks:
        raise ValueError(
            "name checkpoints and tasks: layermem eval CHECKPOINT ... --tasks ppl=FILE blimp=DIR "
            "arithmetic arc_easy"
        )
    trained_on, by_kind = all_tasks(), {kind: list[str]() for kind in _KINDS}
    for task in options.tasks:
        prefix, equals, place = task.partition("=")
        if equals and prefix in _PREFIXES:
            by_kind[_PREFIXES[prefix]].append(place)
        else:
            by_kind[_PROBLEMS if task in trained_on else _BENCHMARKS].append(task)
    for kind, (_, names) in _KINDS.items():
        for name in names:
            value = getattr(options, name)
            if not by_kind[kind] and value != getattr(EvalOptions, name):
                raise ValueError(
                    f"--{name.replace('_', '-')} {value} is for {kind}, and --tasks names none: "
                    "leave it out"
                )
    return by_kind
