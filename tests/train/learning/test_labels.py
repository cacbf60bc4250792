"""Labelled records as tokens: pairs, what is cut, padding."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from layermem_bench.data.labelled_records import LabelledRecord
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.train.learning.labels import RecordDataset, RecordEncoder
from layermem_bench.train.sequences import padding_of


@pytest.fixture(scope="module")
def bert_like():
    """Letters as tokens, joined as BERT joins them."""
    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *"abcdefgh"]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
    )


def record(*texts, label="x"):
    return LabelledRecord(texts=texts, label=label, where="f, line 2")


def test_a_pair_is_joined_as_the_tokenizer_joins_it(bert_like):
    encoder = RecordEncoder(bert_like, 16, has_segments=True)
    inputs, is_cut = encoder.encode(("a b", "c"))
    assert inputs == {"input_ids": [1, 4, 5, 2, 6, 2], "token_type_ids": [0, 0, 0, 0, 1, 1]}
    assert not is_cut and encoder.separator(2) is None
    assert encoder.encode(("a b",))[0]["input_ids"] == [1, 4, 5, 2]
    bare = RecordEncoder(bert_like, 16, has_segments=False)
    assert list(bare.encode(("a", "b"))[0]) == ["input_ids"]


def test_a_tokenizer_without_pairs_has_its_end_between_them():
    encoder = RecordEncoder(load_tokenizer("bytes"), 16, has_segments=True)
    assert encoder.encode(("ab", "c")) == ({"input_ids": [97, 98, 256, 99]}, False)
    assert encoder.separator(2) == "<|endoftext|>" and encoder.separator(1) is None
    assert encoder.encode(("ab",))[0]["input_ids"] == [97, 98]


def test_the_longer_text_is_cut_and_counted(bert_like):
    cut = RecordEncoder(bert_like, 8, has_segments=False)
    assert cut.encode(("a b c d e f", "g h")) == ({"input_ids": [1, 4, 5, 6, 2, 10, 11, 2]}, True)
    assert not cut.encode(("a b c", "g h"))[1]
    letters = RecordEncoder(load_tokenizer("bytes"), 6, has_segments=False)
    assert letters.encode(("abcdef", "gh")) == ({"input_ids": [97, 98, 99, 256, 103, 104]}, True)
    data = RecordDataset([record("a b c d e f", "g"), record("a", "b")], ["x", "y"], cut)
    assert data.cut == 1 and data.length == (8 + 5) / 2


def test_a_special_token_in_a_text_is_text(bert_like):
    ids = RecordEncoder(bert_like, 32, has_segments=False).encode(("a [SEP] b",))[0]["input_ids"]
    assert ids.count(2) == 1
    letters = RecordEncoder(load_tokenizer("bytes"), 64, has_segments=False)
    assert 256 not in letters.encode(("a<|endoftext|>b",))[0]["input_ids"]


def test_a_batch_is_padded_on_the_right_with_a_mask(bert_like):
    encoder = RecordEncoder(bert_like, 16, has_segments=True)
    data = RecordDataset([record("a b c", label="y"), record("a")], ["x", "y"], encoder)
    batch = data.collate([data[0], data[1]])
    assert batch["input_ids"].tolist() == [[1, 4, 5, 6, 2], [1, 4, 2, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert batch["labels"].tolist() == [1, 0] and not batch["token_type_ids"].any()
    assert torch.equal(data[1]["labels"], torch.tensor(0))
    assert data.identity() == [[[1, 4, 5, 6, 2], [1]], [[1, 4, 2], [0]]]


def test_what_has_no_room_or_no_tokens_is_refused(bert_like):
    with pytest.raises(
        ValueError, match="max_length=4 has no room for a token of 2 texts beside 3"
    ):
        RecordEncoder(bert_like, 4, has_segments=False).check_length(2)
    RecordEncoder(bert_like, 4, has_segments=False).check_length(1)
    bare = load_tokenizer("bytes")
    bare.pad_token = None
    assert padding_of(bare) == 256
    bare.eos_token = None
    with pytest.raises(ValueError, match="neither puts a token of its own between two texts"):
        RecordEncoder(bare, 8, has_segments=False).encode(("a", "b"))
    with pytest.raises(ValueError, match="neither a padding token nor an end token"):
        padding_of(bare)
    empty = RecordEncoder(load_tokenizer("bytes"), 8, has_segments=False)
    with pytest.raises(ValueError, match="f, line 2: the tokenizer makes no token"):
        RecordDataset([record("")], ["x", "y"], empty)
