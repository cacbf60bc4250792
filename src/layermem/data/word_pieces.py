"""A small WordPiece tokenizer in BERT's manner, trained on texts.

It does not know: where the texts are from, models.
"""

from collections.abc import Sequence
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

    Two texts are joined as ``[CLS] first [SEP] second [SEP]``, and are two segments.
    """
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.WordPiece(unk_token=_SPECIAL["unk_token"]))
    raw.normalizer = normalizers.BertNormalizer(lowercase=True)
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=list(_SPECIAL.values()), show_progress=False
    )
    raw.train_from_iterator(texts, trainer)
    # The special tokens have the first ids, in their order.
    ids = {token: i for i, token in enumerate(_SPECIAL.values())}
    raw.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=raw, model_input_names=names, **_SPECIAL)
