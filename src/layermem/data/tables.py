"""Rows of tables with a header: separated by tabs, as GLUE's files are, or by commas.

    index	question	sentence	label        .tsv: quotation marks are text
    sentence,label                               .csv: quotation marks enclose a cell

Every row comes with a name of its place for errors.

It does not know: what the columns mean.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from layermem.data import compression


def tab_separated_rows(path: Path) -> Iterator[tuple[dict[str, str], str]]:
    """Yield the rows of a table. Quotation marks are text, as in GLUE's files."""
    header: list[str] = []
    with compression.open_decompressed(path) as file:
        for number, line in enumerate(file, 1):
            where = f"{path}, line {number}"
            try:
                # A byte order mark is no part of the first column's name.
                cells = line.decode("utf-8" if header else "utf-8-sig").rstrip("\r\n").split("\t")
            except UnicodeDecodeError as error:
                raise ValueError(f"{where} is not UTF-8 ({error}); convert it first") from error
            if not header:
                header = cells
            elif cells != [""]:
                yield _row(header, cells, where), where


def comma_separated_rows(path: Path) -> Iterator[tuple[dict[str, str], str]]:
    """Yield the rows of a table whose cells may stand in quotation marks, over several lines."""
    with compression.open_decompressed(path) as file:
        # A byte order mark, which spreadsheets write, is no part of the first column's name.
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        reader = csv.reader(text, strict=True)
        header: list[str] = []
        begin = 1
        try:
            for cells in reader:
                where, begin = f"{path}, line {begin}", reader.line_num + 1
                if not header:
                    header = cells
                elif cells:
                    yield _row(header, cells, where), where
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 ({error}); convert it first") from error
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {begin} is no row of a .csv ({error}); write it again"
            ) from error


def _row(header: Sequence[str], cells: Sequence[str], where: str) -> dict[str, str]:
    if len(cells) != len(header):
        raise ValueError(f"{where} has {len(cells)} columns, and the header has {len(header)}")
    return dict(zip(header, cells, strict=True))
