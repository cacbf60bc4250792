"""Files that are complete or as they were before, and folders that can be created."""

import os
import threading
from pathlib import Path


def check_no_file(path: Path) -> None:
    """Raise if a file lies where a folder is, or would have to be created."""
    for at in (path, *path.parents):
        if at.exists() and not at.is_dir():
            raise NotADirectoryError(f"{at} is a file, not a folder; choose another --out")


def create_folder(path: Path) -> None:
    """Create a folder for results, if there is none; raise, naming it, where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        check_no_file(path)
        why = error.strerror or error
        raise OSError(f"{path} cannot be created ({why}); choose another --out") from error


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file, which is then complete or as it was before; create its folder if needed."""
    create_folder(path.parent)
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
