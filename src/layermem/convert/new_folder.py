"""``new_folder``: a folder that is written whole or not at all and replaces nothing by accident."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# What a saved model and its tokenizer are made of.
_SUFFIXES = {".json", ".safetensors", ".bin", ".model", ".jinja", ".tiktoken", ".py"}
_NAMES = {
    *("README.md", "LICENSE", "NOTICE", ".gitattributes", "vocab.txt", "merges.txt"),
    "additional_chat_templates",
}


def check_target(target: Path, source: Path | None, *, force: bool) -> Path:
    """Return where the folder ``target`` leads; raise if it must not be written.

    ``force`` allows to replace a saved model, and nothing else. ``source``, which is read, is never
    replaced.
    """
    target = target.expanduser().resolve()
    if source is not None:
        origin = source.resolve()
        if origin == target or origin in target.parents or target in origin.parents:
            raise ValueError(
                f"the new folder {target} and the source {origin} are one, or one is in the other; "
                "name another folder"
            )
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{target} is a file; name a folder")
    if target.is_dir() and any(target.iterdir()):
        if not force:
            raise FileExistsError(
                f"{target} exists and is not empty; name another folder, or replace it by --force"
            )
        if not (target / "config.json").is_file():
            raise FileExistsError(
                f"{target} is no saved model (it has no config.json), so --force does not replace "
                "it; name another folder, or delete it"
            )
        if (other := _find_other(target)) is not None:
            raise FileExistsError(
                f"{target} holds {other.name} beside a saved model, so --force does not replace "
                "it; name another folder, or move what is to be kept"
            )
    return target


def _find_other(folder: Path) -> Path | None:
    """Return something in a folder that is no part of a saved model, or None."""
    for path in sorted(folder.iterdir()):
        is_part = path.name in _NAMES or (path.is_file() and path.suffix in _SUFFIXES)
        if not is_part:
            return path
    return None


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``target``, and move it there at the end of the block.

    A folder at ``target`` is replaced. After an error, ``target`` is what it was; after a kill at
    the moment of a replacement, the older folder is beside it, under a name that ends with .old.
    """
    staging = target.with_name(f".{target.name}.{os.getpid()}.part")
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        staging.mkdir(parents=True)
    except OSError as error:
        raise OSError(f"{target} cannot be created ({error.strerror}); name another") from error
    try:
        yield staging
        for path in staging.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        if target.is_dir():
            os.replace(target, old)
        os.replace(staging, target)
    except BaseException:
        if old.exists() and not target.exists():
            os.replace(old, target)
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
