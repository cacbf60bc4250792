"""Tables about problems of tasks that models solve, from a ``SolvedTasks`` alone.

It does not know: torch, models, how problems are graded.
"""

from layermem.report.page import Section, Table
from layermem.results.solved import Shares, SolvedTasks


def section(result: SolvedTasks, title_suffix: str = "") -> Section:
    """Return the section of a page that shows the result."""
    return Section(title=f"Problems of their tasks{title_suffix}", tables=tables(result))


def tables(result: SolvedTasks) -> list[Table]:
    """Return a table of each task: what each model solves, by level."""
    shown = []
    for task in result.options.tasks:
        rows, guesses, faults = [], dict[str, None](), list[str]()
        level_name = "level"
        for model, by_task in result.models.items():
            solved = by_task[task]
            ((level_name, by_level),) = solved.by.items()
            for level, shares in (*by_level.items(), ("all", solved)):
                rows.append([model, level, *_cells(shares)])
            guesses[f"{solved.chance:.1%}"] = None
            counts = ", ".join(f"{name} {count:,}" for name, count in solved.faults.items())
            faults.append(f"{model}: {counts or 'none'}")
        shown.append(
            Table(
                header=[
                    f"{task}, {result.options.split}",
                    level_name,
                    "problems",
                    "right answers (95% interval)",
                    "every step right",
                ],
                rows=rows,
                caption=f"Intervals by Wilson's method, over problems and not over seeds of "
                f"training. A guess: {', '.join(guesses)}. First faults of wrong solutions: "
                f"{'; '.join(faults)}.",
            )
        )
    return shown


def _cells(shares: Shares) -> list[str]:
    low, high = shares.interval
    right = f"{shares.accuracy:.1%} ({low:.1%} to {high:.1%})"
    return [f"{shares.count:,}", right, f"{shares.steps:.1%}"]
