"""The content of files, plain or compressed; incomplete compressed data is an error.

The standard library's readers ignore what follows the end of a complete .xz or .bz2, and
zstandard's accepts half a frame. Here every member of a file (``cat a.gz b.gz`` has two) is read to
its own end mark, and what is missing, damaged or left over is an error.

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

# Compressed bytes decompressed at once: repeated text can be a hundred thousand times as long.
_PIECE = 4096
_MEMBERS: dict[str, Callable[[], Any]] = {
    ".xz": lzma.LZMADecompressor,
    # 31: with gzip's header and check sum.
    ".gz": lambda: zlib.decompressobj(31),
    ".bz2": bz2.BZ2Decompressor,
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}
# Of these, the tools pad members with zeros.
_PADDED = {".xz", ".gz"}
SUFFIXES = frozenset(_MEMBERS)


@contextmanager
def open_decompressed(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file's content, decompressed where its suffix says so.

    Reading raises ``ValueError`` where compressed data is incomplete or damaged, at the latest at
    the end of the file.
    """
    with path.open("rb") as file:
        if path.suffix.lower() in SUFFIXES:
            yield cast("IO[bytes]", io.BufferedReader(_Members(file, path), 2**16))
        else:
            yield file


@final
class _Members(io.RawIOBase):
    """The decompressed content of all members of a file, one after the other."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self.file, self.path, self.suffix = file, path, path.suffix.lower()
        self.member = _MEMBERS[self.suffix]()
        self.in_member = False
        self.complete_members = 0
        self.packed, self.plain = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.plain and self._read_packed():
            self.plain = memoryview(self._decompress())
        count = min(len(buffer), len(self.plain))
        buffer[:count], self.plain = self.plain[:count], self.plain[count:]
        return count

    def _read_packed(self) -> bool:
        """Read compressed bytes where none are at hand; return whether there are any."""
        self.packed = self.packed or self.file.read(_PIECE)
        if self.complete_members and not self.in_member and self.suffix in _PADDED:
            while self.packed and not self.packed.strip(b"\0"):
                self.packed = self.file.read(_PIECE)
            self.packed = self.packed.lstrip(b"\0")
        if not self.packed and (self.in_member or not self.complete_members):
            raise ValueError(
                f"{self.path} is cut short: it ends before its compressed data does; fetch it or "
                "compress it again"
            )
        return bool(self.packed)

    def _decompress(self) -> bytes:
        """Decompress the bytes at hand."""
        self.in_member = True
        try:
            plain: bytes = self.member.decompress(self.packed)
        except (OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
            count = self.complete_members
            after = f" after {count} complete members" if count else ""
            raise ValueError(
                f"{self.path} is damaged before byte {self.file.tell()}{after}, or holds what is "
                f"not {self.suffix[1:]} ({error}); fetch it or compress it again"
            ) from error
        self.packed = b""
        if self.member.eof:
            self.packed = self.member.unused_data
            self.member, self.in_member = _MEMBERS[self.suffix](), False
            self.complete_members += 1
        return plain
