"""Tokenizers of llama2.c (tokenizer.bin) as fast tokenizers of transformers.

    int32       bytes of the longest piece
    per token   float32 score, int32 length, so many bytes

Tokens 0, 1 and 2 are unknown, beginning and end, the next 256 the bytes. A text gets the beginning
and a space before it. Characters that are no token become bytes; then two neighbouring tokens
whose joined text is a token are joined, the pair of the highest score first, the leftmost of
several. Here that order is the order of merges. Where one token can be joined of two pairs, the
pair whose first part is shorter comes first, wherever it stands.

Texts are decoded as the pieces stand, so the space before the first word stays, and the pieces of a
continuation can be appended to its prompt. llama2.c leaves out that space when it prints.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

_PIECE = struct.Struct("<fi")
_SPECIAL = 3
_FIRST_PIECE = _SPECIAL + 256


@dataclass(frozen=True, slots=True)
class _Piece:
    text: str
    score: float


def load_tokenizer(path: Path, vocabulary: int, longest: int) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a file, of a model with so many tokens and so long sequences."""
    pieces = _read_pieces(path, vocabulary)
    unknown, begin, end = (piece.text for piece in pieces[:_SPECIAL])
    ids = {piece.text: i for i, piece in enumerate(pieces)}
    if len(ids) < len(pieces):
        twice = next(p.text for i, p in enumerate(pieces) if ids[p.text] != i)
        raise ValueError(f"{path} has the token {twice!r} twice; it is damaged")
    raw = Tokenizer(
        models.BPE(ids, _merges(pieces, ids), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    raw.normalizer = normalizers.Prepend(" ")
    raw.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    raw.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[(begin, 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        unk_token=unknown,
        bos_token=begin,
        eos_token=end,
        model_max_length=longest,
        clean_up_tokenization_spaces=False,
    )


def _merges(pieces: list[_Piece], ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return all pairs of tokens whose joined text is a token, by its score."""
    joined = sorted((-piece.score, i) for i, piece in enumerate(pieces) if i >= _FIRST_PIECE)
    merges = []
    for _, i in joined:
        text = pieces[i].text
        pairs = ((text[:cut], text[cut:]) for cut in range(1, len(text)))
        # What names a special token or a byte is no text that could be joined.
        merges += [
            pair for pair in pairs if all(ids.get(part, -1) >= _FIRST_PIECE for part in pair)
        ]
    return merges


def _read_pieces(path: Path, vocabulary: int) -> list[_Piece]:
    data = path.read_bytes()
    if len(data) < 4:
        raise ValueError(f"{path} is no tokenizer of llama2.c: it has {len(data)} bytes")
    (longest,) = struct.unpack_from("<i", data)
    pieces: list[_Piece] = []
    start = 4
    while len(pieces) < vocabulary:
        if start + _PIECE.size > len(data):
            raise ValueError(
                f"{path} ends after {len(pieces):,} tokens, and the model has {vocabulary:,}: it "
                "is cut short, or the tokenizer of another model"
            )
        score, length = _PIECE.unpack_from(data, start)
        start += _PIECE.size
        if not 1 <= length <= longest or start + length > len(data):
            raise ValueError(
                f"{path} is no tokenizer of llama2.c, or damaged: token {len(pieces)} has a length "
                f"of {length} bytes, of at most {longest}, with {len(data) - start} bytes left"
            )
        pieces.append(_Piece(_decode(path, len(pieces), data[start : start + length]), score))
        start += length
    if start != len(data):
        raise ValueError(
            f"{path} has {len(data) - start:,} bytes after its {vocabulary:,} tokens: it is "
            "damaged, or the tokenizer of a model with more tokens"
        )
    _check_special(path, pieces)
    return pieces


def _decode(path: Path, index: int, data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: token {index}, {data!r}, is not UTF-8; it is damaged") from error
    # llama2.c writes beginning and end between line breaks.
    return text.strip("\n") if index < _SPECIAL else text


def _check_special(path: Path, pieces: list[_Piece]) -> None:
    """Raise unless the tokens of bytes are where llama2.c expects them, and scores are numbers."""
    for byte in range(256):
        index = _SPECIAL + byte
        text = pieces[index].text if index < len(pieces) else "nothing"
        if text != f"<0x{byte:02X}>":
            raise ValueError(
                f"{path}: token {index} should be <0x{byte:02X}>, and is {text!r}: it is no "
                "tokenizer with bytes, as llama2.c needs"
            )
    for index, piece in enumerate(pieces):
        if piece.score != piece.score:
            raise ValueError(f"{path}: the score of token {index} is no number; it is damaged")
