"""Builds the site's page "Every file" from the first line of each file that git tracks.

A Python file is described by the first line of its docstring, a page by its first heading, anything
else by its first comment. MkDocs calls ``on_files``; tests/test_docs.py asks for every description.
"""

import ast
import re
import subprocess
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = "files.md"
# Formats that cannot hold a comment.
DESCRIPTIONS = {
    "LICENSE": "The text of the Apache 2.0 licence.",
    "py.typed": "Tells type checkers that the package has annotations.",
    ".json": "Figures that a command of this repository recorded.",
    ".svg": "A figure of the documentation.",
    ".xz": "Run folders that were recorded, without weights.",
}
_COMMENT = re.compile(r"\s*(?:#|//|/\*|<!--|\{#)-?\s*(.+?)\s*(?:-->|#\}|\*/)?\s*$")
_INTRODUCTION = """# Every file

One line for each file of the repository, taken from the file itself when this page is built.
"""


def tracked_files(root: Path = ROOT) -> list[str]:
    """Return the paths of all files that git tracks, or would track once they are added."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, capture_output=True, text=True, cwd=root, check=True)
    return sorted(name for name in listing.stdout.splitlines() if (root / name).exists())


def describe(path: Path) -> str:
    """Return the line that says what a file is for; empty if the file does not say."""
    fixed = DESCRIPTIONS.get(path.name) or DESCRIPTIONS.get(path.suffix)
    if fixed:
        return fixed
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    lines = text.splitlines()
    if path.suffix == ".md":
        headings = (line.removeprefix("# ") for line in lines if line.startswith("# "))
        return next(headings, "")
    if lines and (lines[0].startswith("#!") or lines[0].lower().startswith("<!doctype")):
        lines = lines[1:]
    # A comment further down describes a part of the file, not the file.
    comment = _COMMENT.match(lines[0]) if lines else None
    return comment[1] if comment else ""


def render(names: Iterable[str], root: Path = ROOT) -> str:
    """Return the page as Markdown: a section for each folder, a row for each file."""
    parts = [_INTRODUCTION]
    by_folder = sorted(names, key=lambda name: (Path(name).parent.parts, name))
    for folder, members in groupby(by_folder, key=lambda name: Path(name).parent):
        title = "The top folder" if folder == Path() else f"`{folder.as_posix()}/`"
        parts.append(f"## {title}\n\n| file | what it is |\n|---|---|\n" + _rows(members, root))
    return "\n".join(parts)


def _rows(names: Iterable[str], root: Path) -> str:
    """Return table rows; the id of each is the file's path, so that pages can link to it."""
    rows = []
    for name in names:
        description = describe(root / name).replace("|", "\\|")
        rows.append(f'| <span id="{name}">`{Path(name).name}`</span> | {description} |\n')
    return "".join(rows)


def on_files(files: Any, config: Any) -> Any:
    """Add the page to the site (a hook of MkDocs)."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, PAGE, content=render(tracked_files())))
    return files
