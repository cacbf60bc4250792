"""Which planned runs are recorded, wherever they lie: found by run id below some folders."""

import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from layermem.config import Run
from layermem.runs import RunFolder, check_no_file
from layermem.train.run_config import recorded_run

logger = logging.getLogger(__name__)


class RecordedRuns:
    """The runs below ``out``, where new ones are trained, and below further folders."""

    def __init__(self, out: Path, others: Iterable[Path] = ()) -> None:
        self.out = out
        self._ended: dict[str, RunFolder] = {}
        check_folders(out, others := tuple(others))
        for root in (out, *others):
            for folder in _run_folders(root):
                self._add(folder)

    def folder_of(self, name: str, run: Run) -> RunFolder:
        """Return where a run is recorded, else where it is to be trained.

        A run that was begun elsewhere and has not ended is left alone: it may go on there.
        """
        own = RunFolder(self.out / name)
        if own.final.exists():
            return own
        return self._ended.get(run.id, own)

    def path_of(self, name: str, run: Run) -> Path:
        """Return the same as a path."""
        return self.folder_of(name, run).path

    def _add(self, folder: RunFolder) -> None:
        try:
            run = recorded_run(folder)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("%s is left out: %s", folder.path, error)
            return
        if folder.final.exists() or folder.diverged.exists():
            self._ended.setdefault(run.id, folder)


def check_folders(out: Path, others: Iterable[Path]) -> None:
    """Raise unless runs may lie in these folders: ``out`` need not exist, the others must."""
    check_no_file(out)
    for root in others:
        if root != out and not root.is_dir():
            raise FileNotFoundError(f"{root} is no folder; name one that holds runs")


def _run_folders(root: Path) -> Iterator[RunFolder]:
    """Yield the run folders below a folder, at any depth; there is none within another."""
    seen: set[Path] = set()
    for path, inner, files in os.walk(root, followlinks=True):
        # A link may lead back to where it lies in.
        if (real := Path(path).resolve()) in seen:
            inner.clear()
            continue
        seen.add(real)
        if RunFolder(path).config.name in files:
            yield RunFolder(path)
            inner.clear()
        inner[:] = sorted(name for name in inner if not name.startswith("."))
