"""Blocks of a file of tokens: in order, complete, documents separated."""

import pickle

import numpy as np
import pytest
import torch

from layermem_bench.text.blocks import Blocks, Prepared

END = 256


def prepared(tmp_path, tokens):
    path = tmp_path / "train.bin"
    np.asarray(tokens, dtype=np.uint16).tofile(path)
    return Prepared(path=path, dtype="uint16", tokens=len(tokens), documents=1, end=END)


def test_blocks_are_the_file_in_order_but_for_a_partial_last_one(tmp_path):
    found = Blocks(prepared(tmp_path, range(23)), 5)
    assert len(found) == 4
    assert [found[i]["input_ids"].tolist() for i in range(4)] == [
        list(range(5 * i, 5 * i + 5)) for i in range(4)
    ]
    assert torch.equal(found[2]["labels"], found[2]["input_ids"])
    # Another process gets the path, not the tokens that are mapped here.
    again = pickle.dumps(found)
    assert len(again) < 1000 and torch.equal(pickle.loads(again)[3]["labels"], found[3]["labels"])
    for index in (4, -1):
        with pytest.raises(IndexError):
            found[index]


def test_isolated_documents_count_from_zero_and_predict_no_first_token(tmp_path):
    tokens = [7, 8, END, 9, END, END, 5, 6]
    blocks = Blocks(prepared(tmp_path, tokens), 4, isolate=True)
    # A batch is stacked without a mask.
    assert {
        name: rows.tolist() for name, rows in blocks.collate([blocks[1], blocks[0]]).items()
    } == {
        "input_ids": [tokens[4:], tokens[:4]],
        "position_ids": [[0, 0, 0, 1], [0, 1, 2, 0]],
        "labels": [[-100, -100, -100, 6], [-100, 8, END, -100]],
    }


def test_less_text_than_one_block(tmp_path):
    with pytest.raises(ValueError, match="23 tokens, less than one block of 64; give more text"):
        Blocks(prepared(tmp_path, range(23)), 64)
