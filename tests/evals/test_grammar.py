"""Grammar: pairs against a literal loop, shares and paired differences, records."""

import json
import lzma
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from eval_fixtures import our_model
from tokenizers import Tokenizer, models, pre_tokenizers

from layermem_bench.evals.grammar import Pair, judge_pairs, read_pairs, right_rows
from layermem_bench.statistics import mcnemar, proportion
from layermem_bench.text.tokenizers import load_tokenizer

RECORDS = Path(__file__).parents[3] / "shared" / "data" / "evals" / "blimp.jsonl.xz"
SENTENCES = ["Who sleeps?", "Who do sleep?", "Zoë has left."]


def pair(good="a", bad="b", phenomenon="p"):
    return Pair(good=good, bad=bad, phenomenon=phenomenon)


@torch.inference_mode()
def log_probability(model, ids):
    """The literal loop: one forward for each token, summed in float64."""
    return sum(
        model(input_ids=torch.tensor([ids[:i]])).logits[0, -1].double().log_softmax(-1)[ids[i]]
        for i in range(1, len(ids))
    ).item()


@pytest.mark.parametrize("batch_size", [None, 1, 2])
def test_a_pair_is_judged_by_the_log_probability_of_whole_sentences(batch_size):
    model, tokenizer = our_model(), load_tokenizer("bytes")
    rows = [[256, *text.encode()] for text in SENTENCES]
    first, second, third = (log_probability(model, row) for row in rows)
    pairs = [pair(SENTENCES[i], SENTENCES[j]) for i, j in ((0, 1), (1, 0), (2, 0))]
    margins = judge_pairs(model, tokenizer, pairs, batch_size=batch_size)
    assert margins == pytest.approx([first - second, second - first, third - first], rel=1e-4)


def test_without_a_token_before_them_the_first_of_a_sentence_is_not_scored():
    model, tokenizer, pairs = our_model(), load_tokenizer("bytes"), [pair("abc", "abx")]
    ends = [pair("bc", "bx")]
    after = judge_pairs(model, tokenizer, ends, predecessor=ord("a"))
    assert judge_pairs(model, tokenizer, pairs, predecessor=None) == pytest.approx(after, rel=1e-4)


@pytest.mark.parametrize("batch_size", [1, 7, None])
def test_pairs_of_equal_ids_tie_in_every_batch(batch_size):
    raw = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>")
    starts = ["a " * n for n in (3, 40, 5, 60, 7, 20, 9, 11, 13)]
    pairs = [pair(f"{start}who", f"{start}whom") for start in starts]
    margins = judge_pairs(our_model(), tokenizer, pairs, predecessor=2, batch_size=batch_size)
    assert (margins == 0).all()


def test_a_tie_is_not_right():
    margins = {"ours": np.array([1.0, -1.0, 0.5, 0.0]), "theirs": np.array([1.0, -1.0, 0.5, 1.0])}
    of_all = next(right_rows([pair()] * 4, margins))
    share = of_all.scores["ours"]
    assert (share.value, share.count, share.counts) == (0.5, 4, {"ties": 1})
    assert share.interval == proportion(2, 4)
    assert of_all.scores["theirs"].counts == {} and of_all.differences["theirs"].value == 0.25


def test_rows_are_all_pairs_and_phenomena_with_paired_differences():
    pairs = [pair(phenomenon="a")] * 8 + [pair(phenomenon="b")] * 4
    ours, theirs = np.ones(12), np.array([-1.0] * 7 + [1.0] + [-1.0, 1.0, 1.0, 1.0])
    rows = {row.name: row for row in right_rows(pairs, {"theirs": theirs, "ours": ours})}
    assert [*rows] == ["all", "a", "b"]
    of_all, a, b = rows.values()
    assert of_all.differences["ours"].value == pytest.approx(8 / 12)
    assert of_all.differences["ours"].p == mcnemar(8, 0)
    # Two phenomena: Holm doubles the smaller p-value.
    assert a.differences["ours"].p == pytest.approx(2 * mcnemar(7, 0))
    assert (b.differences["ours"].p, b.differences["ours"].value) == (1, 0.25)
    assert (b.scores["theirs"].value, b.scores["theirs"].count, b.chance) == (0.75, 4, 0.5)
    # Of two models, each difference of all pairs is one of two, of phenomena one of four.
    two = {row.name: row for row in right_rows(pairs, {"t": theirs, "o": ours, "p": ours})}
    assert two["all"].differences["p"].p == pytest.approx(2 * mcnemar(8, 0))
    assert two["a"].differences["o"].p == pytest.approx(4 * mcnemar(7, 0))


def record(good, bad="Who sleep?", **changes):
    names = {"linguistics_term": "agreement", "UID": "verbs"}
    return json.dumps({"sentence_good": good, "sentence_bad": bad, **names, **changes}) + "\n"


def test_records_of_files_and_folders_are_read_once(tmp_path):
    some = tmp_path / "b.jsonl"
    same = record("Who sleep?")
    some.write_text(record("Who sleeps?") + "\n" + same + record("He sleeps.", UID="others"))
    with lzma.open(tmp_path / "a.jsonl.xz", "wt", encoding="utf-8") as file:
        file.write(record("She sleeps."))
    (tmp_path / "notes.txt").write_text("not JSON")
    pairs = read_pairs([str(tmp_path), str(some)])
    assert [each.good for each in pairs] == ["She sleeps.", "Who sleeps?", "He sleeps."]
    few = read_pairs([str(tmp_path)], per_paradigm=1)
    assert [each.good for each in few] == ["She sleeps.", "He sleeps."]
    for text in (same, "{", '{"sentence_good": "a"}\n'):
        some.write_text(text)
        with pytest.raises(ValueError, match=r"b\.jsonl"):
            read_pairs([str(some)])


@pytest.mark.skipif(not RECORDS.is_file(), reason="BLiMP is not on this machine")
def test_the_real_records_are_67_paradigms():
    pairs = read_pairs([str(RECORDS)], per_paradigm=3)
    assert len(pairs) == 3 * 67 and len({each.phenomenon for each in pairs}) == 13
