"""Tokenizers: of bytes, of GPT-2's two files, and of a saved folder."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from layermem.data.tokenizers import BYTE_VOCABULARY_SIZE, fingerprint, load_tokenizer

GPT2 = Path(__file__).parents[3] / "shared" / "data" / "tokenizer" / "gpt2"


def test_a_byte_is_its_own_number():
    tokenizer = load_tokenizer("bytes")
    text = "".join(map(chr, range(256))) + " ∞ 漢\n"
    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert len(tokenizer) == BYTE_VOCABULARY_SIZE == 257 and tokenizer.eos_token_id == 256


def test_what_was_saved_loads_and_splits_alike(tmp_path):
    tokenizer = load_tokenizer("bytes")
    tokenizer.save_pretrained(tmp_path)
    for again in (load_tokenizer(str(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)):
        assert (
            again("déjà <|endoftext|>")["input_ids"] == tokenizer("déjà <|endoftext|>")["input_ids"]
        )
        assert again.eos_token_id == 256
    assert fingerprint(load_tokenizer(str(tmp_path))) == fingerprint(tokenizer)


def test_another_end_token_is_another_tokenizer():
    first, other = load_tokenizer("bytes"), load_tokenizer("bytes")
    other.eos_token = "!"
    assert other.backend_tokenizer.to_str() == first.backend_tokenizer.to_str()
    assert fingerprint(other) != fingerprint(first)


@pytest.mark.skipif(not GPT2.exists(), reason="the shared data is not beside the checkout")
def test_gpt2_from_its_two_files():
    tokenizer = load_tokenizer(str(GPT2))
    assert len(tokenizer) == 50257 and tokenizer.eos_token_id == 50256
    # Known ids of a known text.
    assert tokenizer("Hello world")["input_ids"] == [15496, 995]
    assert tokenizer.decode([15496, 995]) == "Hello world"


def test_a_tokenizer_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match='does not exist; data.tokenizer is "bytes"'):
        load_tokenizer("./nowhere")
    with pytest.raises(ValueError, match="no tokenizer at .*merges.txt"):
        load_tokenizer(str(tmp_path))
