"""A small WordPiece tokenizer in BERT's manner, trained on texts."""

from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

_SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def train_word_pieces(texts: Sequence[str], vocabulary: int) -> Any:
    """Return a fast tokenizer of lower-cased pieces of words, of at most ``vocabulary`` ids.

    Two texts are joined as ``[CLS] first [SEP] second [SEP]``, and are two segments. The same texts
    always give the same pieces.
    """
    from transformers import PreTrainedTokenizerFast

    raw = _tokenizer()
    # The trainer gives the pieces inside a word ids in an order that changes from process to
    # process, which decides between equally frequent pieces: unless they have theirs beforehand.
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary,
        special_tokens=[*_SPECIAL.values(), *_inner_letters(raw, texts)],
        show_progress=False,
    )
    raw.train_from_iterator(texts, trainer)
    # Made anew, since the trained one would read "##a" in a text as that piece.
    raw = _tokenizer(raw.get_vocab())
    # The special tokens have the first ids, in their order.
    raw.add_special_tokens(list(_SPECIAL.values()))
    ids = {token: i for i, token in enumerate(_SPECIAL.values())}
    raw.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=raw, model_input_names=names, **_SPECIAL)


def _tokenizer(vocabulary: dict[str, int] | None = None) -> Tokenizer:
    raw = Tokenizer(models.WordPiece(vocabulary, unk_token=_SPECIAL["unk_token"]))
    raw.normalizer = normalizers.BertNormalizer(lowercase=True)
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.decoder = decoders.WordPiece()
    return raw


def _inner_letters(raw: Tokenizer, texts: Iterable[str]) -> list[str]:
    """Return the pieces of one letter that stand inside words of the texts."""
    letters = set[str]()
    for text in texts:
        for word, _ in raw.pre_tokenizer.pre_tokenize_str(raw.normalizer.normalize_str(text)):
            letters.update(word[1:])
    return [f"##{letter}" for letter in sorted(letters)]
