"""Vectors of many places in many layers, kept on the disk, one layer at a time in memory.

Those of thousands of words are some 50 MB a layer at width 2048: not to be held for all layers at
once.

It does not know: models, what the vectors are.
"""

import tempfile
from collections.abc import Hashable
from contextlib import ExitStack
from types import TracebackType
from typing import IO

import numpy as np


class Shelf:
    """Rows of float32 by key, in temporary files. To be used as a context."""

    def __init__(self) -> None:
        self._files: dict[Hashable, tuple[IO[bytes], int]] = {}
        self._open = ExitStack()

    def __enter__(self) -> "Shelf":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._files.clear()
        self._open.close()

    def put(self, key: Hashable, vector: np.ndarray) -> None:
        """Add a row; a key's first says how long its others are."""
        if key not in self._files:
            made = tempfile.TemporaryFile(prefix="layermem-")  # noqa: SIM115 (closed with the shelf)
            self._files[key] = self._open.enter_context(made), vector.size
        file, size = self._files[key]
        if vector.size != size:
            raise ValueError(f"rows of {key!r} hold {size} numbers, got {vector.size}")
        file.write(np.ascontiguousarray(vector, dtype=np.float32).tobytes())

    def get(self, key: Hashable) -> np.ndarray:
        """Return a key's rows [count, numbers], in memory."""
        file, size = self._files[key]
        file.seek(0)
        # The position is at the end again, where the next row goes.
        return np.frombuffer(file.read(), dtype=np.float32).reshape(-1, size)
