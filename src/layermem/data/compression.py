"""Files as bytes, plain or compressed, whole or not at all.

The standard library's readers take what follows a whole .xz or .bz2 for the end, and zstandard's
takes half a frame for a whole one. Here every member of a file is read to its own end mark, and
what is missing, damaged or left over is an error.

It does not know: what the bytes mean.
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

# Compressed bytes opened at once: a block of one letter is a hundred thousand times as long.
_PIECE = 4096
_MEMBERS: dict[str, Callable[[], Any]] = {
    ".xz": lzma.LZMADecompressor,
    # 31: with gzip's header and check sum.
    ".gz": lambda: zlib.decompressobj(31),
    ".bz2": bz2.BZ2Decompressor,
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}
# Their tools fill up with zeros after a member.
_PADDED = {".xz", ".gz"}
SUFFIXES = frozenset(_MEMBERS)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file's content, decompressed where its suffix says so.

    Reading raises ``ValueError`` where compressed data is cut short or damaged, at the latest at
    the end of the file.
    """
    with path.open("rb") as file:
        if path.suffix.lower() in SUFFIXES:
            yield cast("IO[bytes]", io.BufferedReader(_Members(file, path), 2**16))
        else:
            yield file


@final
class _Members(io.RawIOBase):
    """What the members of a compressed file hold, one after the other."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self.file, self.path, self.suffix = file, path, path.suffix.lower()
        self.member = _MEMBERS[self.suffix]()
        self.begun = False
        self.whole = 0
        self.packed, self.plain = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.plain and self._fill():
            self.plain = memoryview(self._next())
        count = min(len(buffer), len(self.plain))
        buffer[:count], self.plain = self.plain[:count], self.plain[count:]
        return count

    def _fill(self) -> bool:
        """See that there are compressed bytes to open; return whether there are any left."""
        self.packed = self.packed or self.file.read(_PIECE)
        if self.whole and not self.begun and self.suffix in _PADDED:
            while self.packed and not self.packed.strip(b"\0"):
                self.packed = self.file.read(_PIECE)
            self.packed = self.packed.lstrip(b"\0")
        if not self.packed and (self.begun or not self.whole):
            raise ValueError(
                f"{self.path} is cut short: it ends before its compressed data does; fetch it or "
                "compress it again"
            )
        return bool(self.packed)

    def _next(self) -> bytes:
        """Open the compressed bytes at hand."""
        self.begun = True
        try:
            plain: bytes = self.member.decompress(self.packed)
        except (OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
            after = f" after {self.whole} whole members" if self.whole else ""
            raise ValueError(
                f"{self.path} is damaged before byte {self.file.tell()}{after}, or holds what is "
                f"not {self.suffix[1:]} ({error}); fetch it or compress it again"
            ) from error
        self.packed = b""
        if self.member.eof:
            self.packed = self.member.unused_data
            self.member, self.begun, self.whole = _MEMBERS[self.suffix](), False, self.whole + 1
        return plain
