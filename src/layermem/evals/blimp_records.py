"""Records of BLiMP as minimal pairs: two sentences, of which one is grammatical.

    {"sentence_good": "Who should Derek hug after shocking Richard?",
     "sentence_bad": "Who should Derek hug Richard after shocking?",
     "field": "syntax", "linguistics_term": "island_effects", "UID": "adjunct_island", ...}

The source is github.com/alexwarstadt/blimp, folder data: 67 files of 1,000 pairs, one for each
paradigm (UID); a phenomenon (linguistics_term) has several (Warstadt et al., arXiv 1912.00582). One
file writes its field syntax/semantics and others syntax_semantics: here both are the latter. A few
records hold one sentence twice, so that there is nothing to choose: they are left out, with a
warning.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from layermem.data.records import KINDS, file_records, kind_of
from layermem.data.sources import find_files

logger = logging.getLogger(__name__)

_NAMES = ("sentence_good", "sentence_bad", "field", "linguistics_term", "UID")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A minimal pair."""

    good: str
    """The grammatical sentence."""
    bad: str
    """The other one."""
    field: str
    """Field of linguistics: "morphology", "syntax", "semantics" or "syntax_semantics"."""
    phenomenon: str
    """What is violated, such as "island_effects"."""
    paradigm: str
    """How it is violated, such as "adjunct_island"."""

    def __post_init__(self) -> None:
        if self.good == self.bad:
            raise ValueError(
                f"{self.good!r} is both the grammatical sentence and the other one, so that there "
                "is nothing to choose: leave the pair out"
            )


def read_pairs(paths: Sequence[Path], *, per_paradigm: int | None = None) -> list[Pair]:
    """Return the pairs of files of records, or of folders of such files.

    ``per_paradigm``: the first so many pairs of each paradigm; None: all. Records that hold one
    sentence twice are left out.
    """
    if per_paradigm is not None and per_paradigm < 1:
        raise ValueError(f"per_paradigm must be at least 1, got {per_paradigm}")
    counts, pairs, equal = Counter[str](), [], list[str]()
    files = list(itertools.chain.from_iterable(map(_files, paths)))
    _check_distinct(files)
    for file in files:
        for record in file_records(file):
            good, bad, field, phenomenon, paradigm = map(record.text, _NAMES)
            if good == bad:
                equal.append(record.where)
                continue
            pair = Pair(
                good=good,
                bad=bad,
                field=field.replace("/", "_"),
                phenomenon=phenomenon,
                paradigm=paradigm,
            )
            counts[pair.paradigm] += 1
            if per_paradigm is None or counts[pair.paradigm] <= per_paradigm:
                pairs.append(pair)
    if equal:
        logger.warning(
            "%d of %d pairs hold one sentence twice and are left out, the first in %s",
            len(equal),
            len(equal) + counts.total(),
            equal[0],
        )
    if not pairs:
        raise ValueError(f"there are no pairs in {', '.join(map(str, paths)) or 'no files'}")
    return pairs


def _files(path: Path) -> Iterator[Path]:
    path = path.expanduser()
    if path.is_dir():
        files = [file for file in sorted(find_files(path)) if kind_of(file) in KINDS]
        if not files:
            raise ValueError(f"the folder {path} holds no records of BLiMP")
        yield from files
    elif path.is_file():
        yield path
    else:
        raise FileNotFoundError(
            f"{path} does not exist; give BLiMP's JSON lines, a file or the folder data of "
            "github.com/alexwarstadt/blimp"
        )


def _check_distinct(files: Sequence[Path]) -> None:
    """Raise if a file is read twice, or beside a copy of another kind, compressed for example."""
    seen: dict[Path, Path] = {}
    for file in files:
        name = file.name[: file.name.lower().rindex(kind_of(file))]
        for place in {file.resolve(), file.parent.resolve() / name}:
            if place in seen:
                raise ValueError(
                    f"{seen[place]} and {file} are one file, or have one name, so that their pairs "
                    "would count twice: name one of them"
                )
            seen[place] = file
