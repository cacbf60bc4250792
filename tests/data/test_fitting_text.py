"""The text that a conversion is fitted on, as token ids, and the loss on it."""

import pytest
import torch
from tiny import TINY

import layermem
from layermem_bench.data.fitting_text import blocks_of_text, mean_loss
from layermem_bench.data.tokenizers import load_tokenizer


def test_documents_follow_each_other_with_an_end_and_no_more_is_read(tmp_path):
    rows = [f'{{"text": "{"ab" * n}"}}\n' for n in (1, 3, 2, 9)]
    (tmp_path / "texts.jsonl").write_text("".join(rows) + '{"text": 5}\n', encoding="utf-8")
    tokenizer = load_tokenizer("bytes")
    end, (a, b) = tokenizer.eos_token_id, tokenizer("ab", add_special_tokens=False)["input_ids"]
    blocks = blocks_of_text(str(tmp_path / "texts.jsonl"), tokenizer, 4, 13)
    # 13 tokens are four whole sequences; the row that is none lies behind them.
    assert blocks.tolist() == [[a, b, end, a], [b, a, b, a], [b, end, a, b], [a, b, end, a]]
    with pytest.raises(ValueError, match="texts.jsonl"):
        blocks_of_text(str(tmp_path / "texts.jsonl"), tokenizer, 4, 100)


def test_what_is_left_of_a_sequence_is_dropped(tmp_path):
    (tmp_path / "text.txt").write_text("abcdef", encoding="utf-8")
    assert blocks_of_text(str(tmp_path / "text.txt"), load_tokenizer("bytes"), 4, 100).shape == (
        1,
        4,
    )


def test_the_loss_is_the_mean_over_tokens():
    torch.manual_seed(0)
    model = layermem.build("plain", **TINY).eval()
    blocks = torch.randint(1, 61, (3, 10))
    with torch.no_grad():
        expected = model(blocks, labels=blocks).loss.item()
    assert mean_loss(model, blocks) == pytest.approx(expected, rel=1e-5)
