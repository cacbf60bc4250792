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
    (block,) = [Blocks(prepared(tmp_path, tokens), 8, isolate=True)[0]]
    assert block["position_ids"].tolist() == [0, 1, 2, 0, 1, 0, 0, 1]
    assert block["labels"].tolist() == [-100, 8, END, -100, END, -100, -100, 6]


@pytest.mark.parametrize("isolate", [False, True], ids=["joined", "isolated"])
def test_a_batch_is_stacked_without_a_mask(tmp_path, isolate):
    blocks = Blocks(prepared(tmp_path, [7, END, 8, 9, 5, END]), 3, isolate=isolate)
    batch = blocks.collate([blocks[1], blocks[0]])
    assert batch.keys() == {"input_ids", "labels"} | ({"position_ids"} if isolate else set())
    assert batch["input_ids"].tolist() == [[9, 5, END], [7, END, 8]]
    for name, rows in batch.items():
        assert torch.equal(rows[0], blocks[1][name]) and torch.equal(rows[1], blocks[0][name])


def test_less_text_than_one_block(tmp_path):
    with pytest.raises(ValueError, match="23 tokens, less than one block of 64; give more text"):
        Blocks(prepared(tmp_path, range(23)), 64)
