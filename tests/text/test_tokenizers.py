"""Tokenizers: of bytes, of GPT-2's two files, and of a saved folder."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from layermem_bench.text.tokenizers import (
    BYTE_VOCABULARY_SIZE,
    END,
    batch_encoder,
    fingerprint,
    id_dtype,
    load_tokenizer,
)

GPT2 = Path(__file__).parents[3] / "shared" / "data" / "tokenizer" / "gpt2"


def test_a_byte_is_its_own_number():
    tokenizer = load_tokenizer("bytes")
    text = "".join(map(chr, range(256))) + " ∞ 漢\n"
    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert len(tokenizer) == BYTE_VOCABULARY_SIZE == 257 and tokenizer.eos_token_id == 256
    assert (id_dtype(range(2**16)), id_dtype(range(2**16 + 1))) == (np.uint16, np.uint32)


def test_what_was_saved_loads_and_splits_alike(tmp_path):
    tokenizer = load_tokenizer("bytes")
    tokenizer.save_pretrained(tmp_path)
    for again in (load_tokenizer(str(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)):
        assert (
            again("déjà <|endoftext|>")["input_ids"] == tokenizer("déjà <|endoftext|>")["input_ids"]
        )
        assert again.eos_token_id == 256
    assert fingerprint(load_tokenizer(str(tmp_path))) == fingerprint(tokenizer)
    again.eos_token = "!"
    assert fingerprint(again) != fingerprint(tokenizer)


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
@example(text=f"déjà {END} 漢字\r\n\0\x7f 🙂  ")
def test_bytes_are_encoded_as_the_tokenizer_does(text):
    tokenizer = load_tokenizer("bytes")
    (ids,) = batch_encoder(tokenizer)([text])
    called = tokenizer(text, add_special_tokens=False, split_special_tokens=True)
    assert ids.tolist() == called["input_ids"] == list(text.encode())
    assert ids.dtype == np.uint16


def test_added_tokens_are_encoded_by_the_tokenizer():
    extended = load_tokenizer("bytes")
    extended.add_tokens(["ab"])
    assert batch_encoder(extended)(["abc"])[0].tolist() == [257, 99]


@pytest.mark.skipif(not GPT2.exists(), reason="the shared data is not beside the checkout")
def test_gpt2_from_its_two_files():
    tokenizer = load_tokenizer(str(GPT2))
    assert len(tokenizer) == 50257 and tokenizer.eos_token_id == 50256
    # Known ids of a known text.
    assert tokenizer("Hello world")["input_ids"] == [15496, 995]
    assert tokenizer.decode([15496, 995]) == "Hello world"


def test_the_two_files_of_a_saved_tokenizer_are_what_its_config_says(tmp_path):
    """As of a Qwen2 without tokenizer.json: another pattern, and another end token."""
    names = {chr(number): rank for rank, number in enumerate(range(33, 127))}
    (tmp_path / "vocab.json").write_text(json.dumps({**names, "<|im_end|>": len(names)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    assert load_tokenizer(str(tmp_path)).eos_token != "<|im_end|>"
    saved = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(saved))
    assert load_tokenizer(str(tmp_path)).eos_token == "<|im_end|>"


def test_a_tokenizer_that_is_not_there(tmp_path):
    for name in ("./nowhere", str(tmp_path)):
        with pytest.raises(ValueError, match=f"no tokenizer at {name}.*data.tokenizer"):
            load_tokenizer(name)
