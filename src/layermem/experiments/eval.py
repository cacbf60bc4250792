"""Measure checkpoints side by side, whatever the tasks ask for, and write eval.json.

    ppl=FILE    eval_losses      arithmetic    eval_problems
    blimp=DIR   eval_grammar     arc_easy      eval_tasks, answers

What may be refused without a model is checked before the first one is loaded.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from layermem.analysis.checkpoints import Checkpoint, open_checkpoints
from layermem.evals.blimp_records import read_pairs
from layermem.experiments.answers import measure_tasks
from layermem.experiments.eval_grammar import distinct_pairs, measure_grammar
from layermem.experiments.eval_losses import check_texts, measure_losses
from layermem.experiments.eval_problems import check_problems, measure_problems
from layermem.experiments.eval_tasks import prepare_tasks
from layermem.results.eval import EvalOptions, EvalResult, Part
from layermem.results.files import to_json
from layermem.runs import create_folder, write_atomically
from layermem.study.run_folders import group_by_data, group_into_arms
from layermem.tasks.registry import all_tasks

logger = logging.getLogger(__name__)

_PPL, _BLIMP = "ppl=", "blimp="
# Options that have an effect on one kind of task alone.
_OF_KIND = {
    "ppl=FILE": ("field", "context", "stride"),
    "blimp=DIR": ("probe",),
    "tasks that models were trained on (arithmetic)": ("split", "seed", "task_options"),
    "evaluation tasks (arc_easy)": ("shots", "seeds", "records", "truncate", "max_length"),
}


def evaluate_checkpoints(
    checkpoints: Sequence[str],
    options: EvalOptions,
    out: Path,
    *,
    command: str = "",
    tell: Callable[[str, int | None, int | None], None] = lambda what, done, total: None,
) -> EvalResult:
    """Measure checkpoints; return the result, written to eval.json in ``out``.

    A checkpoint is a run folder, the folder of a saved model or a hub name. Answers to evaluation
    tasks are kept in ``out``, so that a second start goes on where the first one ended. ``tell`` is
    called with what is being done, how much is done, and of how much, where that is known.
    """
    texts, records, problems, others = tasks_by_kind(checkpoints, options).values()
    opened = open_checkpoints(checkpoints, one_vocabulary=False)
    if texts:
        options = check_texts(texts, options, opened)
    pairs = read_pairs([Path(p) for p in records], per_paradigm=options.limit) if records else []
    distinct_pairs(pairs, options.probe)
    solvable = check_problems(problems, options, opened)
    prepared = prepare_tasks(others, options, out / "records") if others else []
    measures: list[Callable[[], Part]] = []
    if texts:
        measures.append(lambda: measure_losses(opened, texts, options, tell))
    if records:
        measures.append(lambda: measure_grammar(opened, pairs, options, tell))
    if problems:
        measures.append(lambda: measure_problems(opened, problems, solvable, options, tell))
    if others:
        measures.append(lambda: measure_tasks(opened, prepared, options, out / "answers", tell))
    names = tuple(each.name for each in opened)
    result = EvalResult(
        command=command, options=options, models=names, parts=(), arms=arms_of(opened)
    )
    create_folder(out)
    for measure in measures:
        result = replace(result, parts=(*result.parts, measure()))
        # Each time, so that one that fails takes no other with it.
        write_atomically(out / "eval.json", to_json(result))
    return result


def tasks_by_kind(checkpoints: Sequence[str], options: EvalOptions) -> dict[str, list[str]]:
    """Return what is asked, by its kind; refuse options that would have no effect."""
    if not checkpoints or not options.tasks:
        raise ValueError(
            "name checkpoints and tasks: layermem eval CHECKPOINT ... --tasks ppl=FILE blimp=DIR "
            "arithmetic arc_easy"
        )
    trained_on, by_kind = all_tasks(), {kind: list[str]() for kind in _OF_KIND}
    texts, pairs, problems, others = by_kind.values()
    for task in options.tasks:
        if task.startswith(_PPL):
            texts.append(task.removeprefix(_PPL))
        elif task.startswith(_BLIMP):
            pairs.append(task.removeprefix(_BLIMP))
        else:
            (problems if task in trained_on else others).append(task)
    for kind, names in _OF_KIND.items():
        for name in names:
            value = getattr(options, name)
            if not by_kind[kind] and value != getattr(EvalOptions, name):
                raise ValueError(
                    f"--{name.replace('_', '-')} {value} is for {kind}, and --tasks names none: "
                    "leave it out"
                )
    return by_kind


def arms_of(checkpoints: Sequence[Checkpoint]) -> dict[str, tuple[str, ...]]:
    """Return the arms; none where a checkpoint is no run, or data or seeds of the runs differ."""
    runs = {
        each.name: (each.run, each.folder)
        for each in checkpoints
        if each.run is not None and each.folder is not None
    }
    if len(runs) < len(checkpoints) or len(runs) < 2 or len(group_by_data(runs)) > 1:
        return {}
    try:
        by_seed = group_into_arms(runs)
    except ValueError as error:
        # They can be compared one by one all the same.
        logger.warning("no means over seeds are shown: %s", error)
        return {}
    seeds = {arm: sorted(names) for arm, names in by_seed.items()}
    first = next(iter(seeds.values()))
    if any(others != first for others in seeds.values()):
        logger.warning(
            "no means over seeds are shown: the arms have different seeds (%s)",
            "; ".join(f"{arm} {', '.join(map(str, of_arm))}" for arm, of_arm in seeds.items()),
        )
        return {}
    return {arm: tuple(names[seed] for seed in first) for arm, names in by_seed.items()}
