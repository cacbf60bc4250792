"""Runs the notebook in examples/ cell by cell, and writes the page with what cells print and draw.

    python docs/notebook_page.py

Run it in a folder that has SmolLM2 as `smollm2`, or is to get it. The page, notebook.md, and its
figures are written beside this file, or into the folder that is named.
"""

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

DOCS = Path(__file__).resolve().parent
SOURCE = DOCS.parent / "examples" / "smollm2_notebook.py"
_CELL = re.compile(r"(?m)^# %%(?P<markdown> \[markdown\])?\n")
_TITLE = "# A notebook: SmolLM2 with memory\n"


def main(out: Path = DOCS) -> None:
    matplotlib.use("svg")
    (out / "notebook.md").write_text("\n".join(run(out)), encoding="utf-8")


def cells(source: str) -> Iterator[tuple[bool, str]]:
    """Yield each cell after the docstring: whether it is prose, and its text."""
    _, *parts = _CELL.split(source)
    for markdown, text in zip(parts[::2], parts[1::2], strict=True):
        lines = text.strip().splitlines()
        prose = markdown is not None
        if prose:
            lines = [line.removeprefix("#").removeprefix(" ") for line in lines]
        yield prose, "\n".join(lines)


def run(out: Path) -> Iterator[str]:
    """Run all cells in one namespace; yield the parts of the page."""
    from matplotlib import pyplot

    names: dict[str, Any] = {"__name__": "notebook"}
    yield _TITLE
    for number, (prose, text) in enumerate(cells(SOURCE.read_text(encoding="utf-8"))):
        if prose:
            yield f"{text}\n"
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text, f"cell {number}", "exec"), names)  # noqa: S102 (our own file)
        yield f"```python\n{text}\n```\n"
        if shown := printed.getvalue().rstrip():
            yield f"```text\n{shown}\n```\n"
        for figure in pyplot.get_fignums():
            name = f"notebook_{number}.svg"
            pyplot.figure(figure).savefig(out / name, bbox_inches="tight", metadata={"Date": None})
            pyplot.close(figure)
            yield f"![What the cell above draws]({name})\n"


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
