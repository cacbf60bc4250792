"""The source of documents that a config names: local files, the standard library, or the hub.

It does not know: how local files are read, tokens, blocks.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, final

from layermem.data.documents import Source, cut_document
from layermem.data.local_files import LocalFiles, open_path, standard_library
from layermem.data.records import Record, text_of_document

_COMMIT = re.compile(r"[0-9a-f]{40}")


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


@final
class HubDataset(Source):
    """A split of a Hugging Face dataset."""

    def __init__(
        self,
        name: str,
        subset: str | None,
        text_field: str,
        *,
        split: str = "train",
        streaming: bool = False,
        revision: str | None = None,
    ) -> None:
        self.name, self.subset, self.text_field = name, subset, text_field
        self.split, self.streaming, self.revision = split, streaming, revision
        self._loaded: Any = None

    def _documents(self) -> Iterator[Iterable[str]]:
        for number, record in enumerate(self._load()):
            where = f"{self.name}, record {number}"
            yield cut_document(text_of_document(Record(record, where), self.text_field))

    def fingerprint(self) -> str:
        if self.streaming:
            # Its text has not been read: only a commit distinguishes it from an earlier version.
            self._pin_commit()
            content = self.revision
        else:
            data = self._load()
            content = f"{self.revision} {data.info.version} {data._fingerprint}"
        fields = self.name, self.subset, self.split, self.text_field, self.streaming, content
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()

    def _pin_commit(self) -> None:
        """Find the commit that the name stands for now, and read no other from here on."""
        if _COMMIT.fullmatch(self.revision or ""):
            return
        import huggingface_hub

        try:
            commit = huggingface_hub.HfApi().dataset_info(self.name, revision=self.revision).sha
        except Exception as error:
            raise ValueError(
                f"the commit of the streamed dataset {self.name} cannot be determined ({error}), "
                "so its prepared text could not be distinguished from another version's; name the "
                "commit (--data.revision, 40 hexadecimal digits), or leave out --data.streaming"
            ) from error
        if not _COMMIT.fullmatch(commit or ""):
            raise ValueError(
                f"the hub must name a commit of {self.name}, got {commit!r}; name one with "
                "--data.revision, or leave out --data.streaming"
            )
        self.revision, self._loaded = commit, None

    def _load(self) -> Any:
        if self._loaded is None:
            # Imported where a dataset is read: it takes longer than all the rest.
            import datasets

            try:
                self._loaded = datasets.load_dataset(
                    self.name,
                    self.subset,
                    split=self.split,
                    streaming=self.streaming,
                    revision=self.revision,
                )
            except Exception as error:
                raise ValueError(
                    f"{self.name} is neither a local path nor a dataset that can be loaded: {error}"
                ) from error
        return self._loaded
