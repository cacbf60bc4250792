"""Files and folders that are complete, or as they were before."""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file, which is then complete or as it was before; create its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Every writer has a part file of its own, so that two at once leave the text of one of them.
    part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        with part.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``target``, and move it there at the end of the block.

    Raise before it if there is something at ``target``. After an error there is nothing.
    """
    target = target.expanduser().resolve()
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise FileExistsError(f"{target} exists and is not empty; name another folder or delete it")
    staging = target.with_name(f".{target.name}.{os.getpid()}.part")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        yield staging
        os.replace(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
