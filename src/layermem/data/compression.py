"""The content of files, plain or compressed; incomplete compressed data is an error.

The standard library's readers ignore what follows the end of a complete .xz or .bz2, zstandard's
and ``datasets`` accept half a frame. Here every member of a file (``cat a.gz b.gz`` has two) is
read to its own end mark, and what is missing, damaged or left over is an error.
"""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast, final

import zstandard

# Compressed bytes decompressed at once: repeated text can be a hundred thousand times as long.
_PIECE = 4096
_MEMBERS: dict[str, Callable[[], Any]] = {
    ".xz": lzma.LZMADecompressor,
    # 31: with gzip's header and check sum.
    ".gz": lambda: zlib.decompressobj(31),
    ".bz2": bz2.BZ2Decompressor,
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}
# With what the tools pad members.
_PADDING = {".xz": b"\0", ".gz": b"\0"}


@contextmanager
def open_decompressed(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file's content, decompressed where its suffix says so.

    Reading raises ``ValueError`` where compressed data is incomplete or damaged, at the latest at
    the end of the file.
    """
    with path.open("rb") as file:
        if path.suffix.lower() in _MEMBERS:
            yield cast("IO[bytes]", io.BufferedReader(_Pieces(_decompress(file, path)), 2**16))
        else:
            yield file


def kind_of(path: Path) -> str:
    """Return the suffix without a compression's, in small letters: ``.jsonl`` of ``a.JSONL.gz``."""
    compressed = path.suffix.lower() in _MEMBERS
    return (Path(path.stem).suffix if compressed else path.suffix).lower()


def _decompress(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """Yield the content of all members of a file, one after the other."""
    suffix = path.suffix.lower()
    packed, members = b"", 0
    while packed or not members:
        member = _MEMBERS[suffix]()
        while not member.eof:
            packed = packed or file.read(_PIECE)
            if not packed:
                raise ValueError(
                    f"{path} is cut short: it ends before its compressed data does; fetch it or "
                    "compress it again"
                )
            try:
                plain = member.decompress(packed)
            except (OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
                raise ValueError(
                    f"{path} is damaged before byte {file.tell()} after {members} complete "
                    f"members, or holds what is not {suffix[1:]} ({error}); fetch it or compress "
                    "it again"
                ) from error
            packed = b""
            yield plain
        members += 1
        packed = member.unused_data.lstrip(_PADDING.get(suffix, b""))
        while not packed and (piece := file.read(_PIECE)):
            packed = piece.lstrip(_PADDING.get(suffix, b""))


@final
class _Pieces(io.RawIOBase):
    """Pieces of bytes as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces, self.rest = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.rest and (piece := next(self.pieces, None)) is not None:
            self.rest = memoryview(piece)
        count = min(len(buffer), len(self.rest))
        buffer[:count], self.rest = self.rest[:count], self.rest[count:]
        return count
