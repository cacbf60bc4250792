"""A split of a Hugging Face dataset as a source of documents.

It does not know: local files, tokens, blocks.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, final

import datasets
import huggingface_hub

from layermem.data.documents import Source, cut_document, text_of_record

_COMMIT = re.compile(r"[0-9a-f]{40}")


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
            yield cut_document(text_of_record(record, self.text_field, where))

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
