"""Tasks of BIG-bench in its own JSON, as records with whole prompts.

    {"task_prefix": "...", "example_input_prefix": "\\nQ: ", "example_output_prefix": "\\nA: ",
     "append_choices_to_input": true, "choice_prefix": "\\n  choice: ",
     "examples": [{"input": "...", "target_scores": {"yes": 1, "no": 0}}, ...]}

The defaults are those of BIG-bench's documentation. A prompt is task_prefix, input prefix, input,
choices (unless they are not appended), output prefix, without white space at its ends: lm-eval puts
a space before an answer. BIG-bench shuffles the appended choices; here they are in alphabetical
order, which does not depend on which is right. The right answers are those of the highest score.

The files carry a canary: they are never to be trained on.

It does not know: where files are, lm-eval, models.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from layermem.data import compression


def read_examples(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield a record of each example of a file, and the name of its place for errors."""
    with compression.open_decompressed(path) as file:
        try:
            task = json.loads(file.read().decode("utf-8-sig"))
        except ValueError as error:
            raise ValueError(f"{path} is not the JSON of a BIG-bench task ({error})") from error
    examples = task.get("examples") if isinstance(task, Mapping) else None
    if not isinstance(examples, list):
        raise ValueError(f"{path} is not the JSON of a BIG-bench task: it has no list 'examples'")
    for number, example in enumerate(examples, 1):
        where = f"{path}, example {number}"
        yield _record(task, example, where), where


def _record(task: Mapping[str, Any], example: Any, where: str) -> dict[str, Any]:
    fields = example if isinstance(example, Mapping) else {}
    if missing := [name for name in ("input", "target_scores") if name not in fields]:
        raise ValueError(
            f"{where} has no field {', '.join(map(repr, missing))} (it has "
            f"{', '.join(fields) or 'none'})"
        )
    scores = fields["target_scores"]
    if not isinstance(scores, Mapping) or not scores:
        raise ValueError(
            f"{where}: target_scores must hold a score of each choice, got {scores!r:.60}"
        )
    best = max(scores.values())
    if best <= 0:
        raise ValueError(f"{where}: no choice of target_scores has a score above 0")
    return {
        "inputs": _prompt(task, str(fields["input"]), sorted(scores)),
        "targets": [choice for choice, score in scores.items() if score == best],
        "multiple_choice_targets": list(scores),
    }


def _prompt(task: Mapping[str, Any], question: str, choices: list[str]) -> str:
    appended = ""
    if task.get("append_choices_to_input", True):
        prefix = task.get("choice_prefix", "\n  choice: ")
        appended = "".join(prefix + choice for choice in choices)
    parts = (
        task.get("task_prefix", ""),
        task.get("example_input_prefix", "\nQ: "),
        question,
        appended,
        task.get("example_output_prefix", "\nA: "),
    )
    return "".join(parts).strip()
