"""Rows of float32 in temporary files, so that only one layer's vectors are in memory at a time.

The vectors of some thousand words take about 50 MB a layer at width 2048, which is too much to hold
for all layers at once.
"""

import tempfile
from collections.abc import Hashable
from contextlib import ExitStack
from types import TracebackType
from typing import IO

import numpy as np


class DiskRows:
    """Rows of float32 by key, each key in a temporary file; a context manager that deletes them."""

    def __init__(self) -> None:
        self._files: dict[Hashable, tuple[IO[bytes], int]] = {}
        self._open_files = ExitStack()

    def __enter__(self) -> "DiskRows":
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._files.clear()
        self._open_files.close()

    def append(self, key: Hashable, row: np.ndarray) -> None:
        """Append a row to those of ``key``; all rows of a key have as many numbers as the first."""
        if key not in self._files:
            new = tempfile.TemporaryFile(prefix="layermem-")  # noqa: SIM115 (closed in __exit__)
            self._files[key] = self._open_files.enter_context(new), row.size
        file, size = self._files[key]
        if row.size != size:
            raise ValueError(f"rows of {key!r} hold {size} numbers, got {row.size}")
        file.write(np.ascontiguousarray(row, dtype=np.float32).tobytes())

    def read(self, key: Hashable) -> np.ndarray:
        """Return all rows of ``key`` as an array [rows, numbers]."""
        file, size = self._files[key]
        file.seek(0)
        # After reading, the position is at the end again, where the next row goes.
        return np.frombuffer(file.read(), dtype=np.float32).reshape(-1, size)
