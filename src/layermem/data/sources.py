"""The source of documents that a config names: local files, the standard library, or the hub.

It does not know: how documents are read, tokens, blocks.
"""

from pathlib import Path

from layermem.data.documents import Source
from layermem.data.hub import HubDataset
from layermem.data.local_files import LocalFiles, open_path, standard_library


def open_source(
    source: str,
    *,
    text_field: str = "text",
    subset: str | None = None,
    revision: str | None = None,
    streaming: bool = False,
) -> Source:
    """Return the documents of "stdlib", of a file or folder, or of a Hugging Face dataset.

    A dataset is NAME or NAME:SPLIT; without a split it is the one called train.
    """
    local: Source | None
    if source == "stdlib":
        local = LocalFiles(standard_library(), text_field)
    else:
        local = open_path(Path(source).expanduser(), text_field)
    if local and revision:
        raise ValueError(
            f"{source} is on this machine and has no revision {revision!r}; data.revision is "
            "for Hugging Face datasets: leave it out"
        )
    if local:
        return local
    name, split = hub_name(source)
    if name.startswith(("/", ".", "~")) or Path(name).suffix or name.count("/") > 1:
        raise FileNotFoundError(
            f"{source} does not exist; data.source is a file, a folder, a Hugging Face dataset "
            '(NAME or NAME:SPLIT), or "stdlib"'
        )
    return HubDataset(name, subset, text_field, split=split, streaming=streaming, revision=revision)


def hub_name(source: str) -> tuple[str, str]:
    """Return the name of a Hugging Face dataset, and its split."""
    name, _, split = source.partition(":")
    return name, split or "train"
