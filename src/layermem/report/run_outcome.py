"""What an ended run on records came to, before and after its training, in a few lines.

It does not know: how a run is trained, the command line.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from layermem.results.answers import Answers
from layermem.results.files import read_result
from layermem.results.record_counts import RecordCounts
from layermem.results.solved import Solved
from layermem.runs import RunFolder


def outcome(folder: RunFolder) -> str:
    """Return what an ended run on records came to, in a few lines."""
    before, *_, after = [row for row in folder.rows() if "val_loss" in row]
    if folder.answers.exists():
        return _outcome_of_questions(before, after, read_result(Answers, folder.answers))
    counts = read_result(RecordCounts, folder.records)
    solved = Solved.from_json(folder.result.read_text(encoding="utf-8"))
    low, high = solved.interval
    return (
        f"before: loss {before['val_loss']:.4f}, {before['val_accuracy']:.1%} right\n"
        f"after {after['step']:,} steps: loss {after['val_loss']:.4f}, {solved.accuracy:.1%} right "
        f"(95% interval over {solved.count:,} records: {low:.1%} to {high:.1%}); always "
        f"{counts.majority!r}, the most frequent label: {counts.majority_share:.1%}"
    )


def _outcome_of_questions(
    before: Mapping[str, Any], after: Mapping[str, Any], answers: Answers
) -> str:
    parts = {
        f"after {after['step']:,} steps: loss {after['val_loss']:.4f}": answers.all,
        "of questions with an answer (HasAns)": answers.has_answer if answers.no_answer else None,
        "of questions without one (NoAns)": answers.no_answer,
        **{f"guess, {name}": score for name, score in answers.guesses.items()},
    }
    lines = [
        f"before: loss {before['val_loss']:.4f}, exact match {before['val_accuracy']:.1%}, F1 "
        f"{before['val_f1']:.1%}"
    ]
    for name, score in parts.items():
        if score is not None:
            lines.append(
                f"{name}: exact match {score.exact:.1%}{_ends(score.exact_interval)}, F1 "
                f"{score.f1:.1%}{_ends(score.f1_interval)}, {score.count:,} questions"
            )
    return "\n".join(lines)


def _ends(interval: Sequence[float]) -> str:
    return f" ({interval[0]:.1%} to {interval[1]:.1%})" if interval else ""
