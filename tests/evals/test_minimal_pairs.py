"""Minimal pairs: scores against a literal loop, shares, paired differences, records."""

import json
import lzma
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from stories import needs_stories, stories_model, stories_tokenizer
from tiny import TINY, make
from tokenizers import Tokenizer, models, pre_tokenizers

from layermem.models.registry import lookup
from layermem_bench import cli
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.evals.grammar import RIGHT_PAIRS, right_rows
from layermem_bench.evals.minimal_pairs import Pair, judge_pairs, read_pairs, score_sentences
from layermem_bench.results.eval import EvalResult
from layermem_bench.results.files import read_result
from layermem_bench.results.intervals import mcnemar, proportion

RECORDS = Path(__file__).parents[3] / "shared" / "data" / "evals" / "blimp.jsonl.xz"
needs_records = pytest.mark.skipif(not RECORDS.is_file(), reason="BLiMP is not on this machine")
SENTENCES = ["Who sleeps?", "Who do sleep?", "Zoë has left.", "A"]


def our_model():
    entry = lookup("lime")
    return make(entry.causal_lm, entry.config(**{**TINY, "vocab_size": 257}))


def record(**changes):
    return {
        "sentence_good": "Who sleeps?",
        "sentence_bad": "Who sleep?",
        "field": "syntax/semantics",
        "linguistics_term": "agreement",
        "UID": "verbs",
        **changes,
    }


@pytest.fixture
def write(tmp_path):
    def make_file(*records, name="pairs.jsonl"):
        lines = (one if isinstance(one, str) else json.dumps(one) for one in records)
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
        return tmp_path / name

    return make_file


def pair(phenomenon, good="a", bad="b"):
    return Pair(good=good, bad=bad, field="syntax", phenomenon=phenomenon, paradigm=phenomenon)


@torch.inference_mode()
def log_probability(model, ids):
    """The literal loop: one forward for each token, summed in float64."""
    return sum(
        model(input_ids=torch.tensor([ids[:i]])).logits[0, -1].double().log_softmax(-1)[ids[i]]
        for i in range(1, len(ids))
    ).item()


@pytest.mark.parametrize("which", ["ours", pytest.param("stories", marks=needs_stories)])
def test_a_score_is_the_log_probability_of_the_whole_sentence(which):
    if which == "ours":
        model, tokenizer = our_model(), load_tokenizer("bytes")
        rows = [[256, *text.encode()] for text in SENTENCES]
    else:
        model, tokenizer = stories_model(), stories_tokenizer()
        rows = [tokenizer(text)["input_ids"] for text in SENTENCES]
    expected = [log_probability(model, row) for row in rows]
    for batch_size in (None, 1, 3):
        scores = score_sentences(model, tokenizer, SENTENCES, batch_size=batch_size)
        assert scores == pytest.approx(expected, rel=1e-5)
    judged = [pair("x", SENTENCES[i], SENTENCES[j]) for i, j in ((0, 1), (1, 0), (2, 0))]
    margin, last = expected[0] - expected[1], expected[2] - expected[0]
    judgements = judge_pairs(model, tokenizer, judged)
    assert judgements == pytest.approx([margin, -margin, last], rel=1e-4)


def test_a_tie_is_not_right():
    margins = {"ours": np.array([1.0, -1.0, 0.5, 0.0]), "theirs": np.array([1.0, -1.0, 0.5, 1.0])}
    of_all = next(right_rows([pair("a")] * 4, margins))
    share = of_all.scores["ours"]
    assert (share.value, share.count, share.counts) == (0.5, 4, {"ties": 1})
    assert share.interval == proportion(2, 4)
    assert of_all.scores["theirs"].counts == {} and of_all.differences["theirs"].value == 0.25


def test_rows_are_all_pairs_phenomena_fields_and_paradigms_with_paired_differences():
    pairs = [pair("a")] * 8 + [pair("b")] * 4
    ours, theirs = np.ones(12), np.array([-1.0] * 7 + [1.0] + [-1.0, 1.0, 1.0, 1.0])
    rows = {(r.table, r.name): r for r in right_rows(pairs, {"theirs": theirs, "ours": ours})}
    assert set(rows) == {
        *((RIGHT_PAIRS, name) for name in ("all", "a", "b")),
        (f"{RIGHT_PAIRS} by field", "syntax"),
        *((f"{RIGHT_PAIRS} by paradigm", name) for name in ("a", "b")),
    }
    of_all, a, b = (rows[RIGHT_PAIRS, name] for name in ("all", "a", "b"))
    assert of_all.differences["ours"].value == pytest.approx(8 / 12)
    assert of_all.differences["ours"].p == mcnemar(8, 0)
    # Two phenomena: Holm doubles the smaller p-value.
    assert a.differences["ours"].p == pytest.approx(2 * mcnemar(7, 0))
    assert (b.differences["ours"].p, b.differences["ours"].value) == (1, 0.25)
    assert (b.scores["theirs"].value, b.scores["theirs"].count, b.chance) == (0.75, 4, 0.5)
    low, high = of_all.differences["ours"].interval
    assert low < 8 / 12 < high <= 1
    # Of two models, each difference of all pairs is one of two, of phenomena one of four.
    two = {(r.table, r.name): r for r in right_rows(pairs, {"t": theirs, "o": ours, "p": ours})}
    assert two[RIGHT_PAIRS, "all"].differences["p"].p == pytest.approx(2 * mcnemar(8, 0))
    assert two[RIGHT_PAIRS, "a"].differences["o"].p == pytest.approx(4 * mcnemar(7, 0))
    # Only one table has differences: the others hold the same pairs.
    assert not any(row.differences for (table, _), row in rows.items() if table != RIGHT_PAIRS)


def test_records_of_files_and_folders(write, tmp_path):
    write(record(), "", record(sentence_good="He sleeps.", UID="others"))
    with lzma.open(tmp_path / "more.jsonl.xz", "wt", encoding="utf-8") as file:
        file.write(json.dumps(record(field="syntax", sentence_good="She sleeps.")))
    write("not JSON", name="notes.txt")
    pairs = read_pairs([tmp_path])
    assert [one.good for one in pairs] == ["She sleeps.", "Who sleeps?", "He sleeps."]
    assert [one.field for one in pairs] == ["syntax", "syntax_semantics", "syntax_semantics"]
    assert [one.good for one in read_pairs([tmp_path], per_paradigm=1)] == [
        "She sleeps.",
        "He sleeps.",
    ]


def test_pairs_that_would_count_twice_are_refused(write, tmp_path):
    plain = write(record(), name="a.jsonl")
    write(record(UID="others"), name="b.jsonl")
    for places in ([tmp_path, plain], [plain, tmp_path / "." / "a.jsonl"], [tmp_path, tmp_path]):
        with pytest.raises(ValueError, match=r"a.jsonl and .*a.jsonl are one file, or have one"):
            read_pairs(places)
    with lzma.open(tmp_path / "a.jsonl.xz", "wt", encoding="utf-8") as file:
        file.write(json.dumps(record()))
    with pytest.raises(ValueError, match=r"a.jsonl and .*a.jsonl.xz are one file, or have one"):
        read_pairs([tmp_path])


def test_one_sentence_twice_is_no_pair(write, caplog):
    same = record(sentence_good="Who sleeps?", sentence_bad="Who sleeps?")
    others = [record(sentence_good=f"{i} sleeps.") for i in range(3)]
    path = write(same, others[0], same, *others[1:])
    assert [one.good for one in read_pairs([path])] == ["0 sleeps.", "1 sleeps.", "2 sleeps."]
    (warning,) = caplog.messages
    assert warning.startswith("2 of 5 pairs") and f"{path}, line 1" in warning
    # As many are read as are asked for.
    assert len(read_pairs([path], per_paradigm=2)) == 2
    with pytest.raises(ValueError, match="there are no pairs in"):
        read_pairs([write(same)])


@needs_records
def test_the_real_records_are_67_paradigms():
    pairs = read_pairs([RECORDS], per_paradigm=3)
    assert len(pairs) == 3 * 67 and len({one.phenomenon for one in pairs}) == 13
    assert {one.field for one in pairs} == {
        *("morphology", "syntax", "semantics", "syntax_semantics"),
    }


def test_records_that_are_no_pairs_are_refused(write, tmp_path):
    incomplete = record()
    del incomplete["UID"], incomplete["sentence_bad"]
    with pytest.raises(ValueError, match=r"pairs.jsonl, line 2 has no field 'sentence_bad' \(it"):
        read_pairs([write(record(), incomplete)])
    for wrong, message in (
        (record(sentence_good=" "), "line 1: sentence_good must be a text, got ' '"),
        (record(field=3), "line 1: field must be a text, got 3"),
        ("[1]", "line 1 must hold an object, .* got"),
        ("{", "line 1 is not JSON"),
        ("", "there are no pairs in"),
    ):
        with pytest.raises(ValueError, match=message):
            read_pairs([write(wrong)])
    with pytest.raises(FileNotFoundError, match=r"nowhere does not exist; give BLiMP's JSON lines"):
        read_pairs([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty holds no records of BLiMP"):
        read_pairs([tmp_path / "empty"])


def test_what_cannot_be_scored_is_refused(tokenizer):
    model, of_bytes = our_model(), load_tokenizer("bytes")
    with pytest.raises(ValueError, match="'A+' has 65 tokens, more than the 64 that the model rea"):
        score_sentences(model, of_bytes, ["A" * 65])
    tokenizer.bos_token = tokenizer.eos_token = None
    with pytest.raises(ValueError, match="neither a BOS nor an EOS token, so the first word"):
        score_sentences(model, tokenizer, ["a b"])
    with pytest.raises(ValueError, match="a tokenizer is needed to read text, got None"):
        score_sentences(model, None, ["a b"])
    with pytest.raises(ValueError, match="the tokenizer has no tokens to predict in ''"):
        score_sentences(model, of_bytes, [""])
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        score_sentences(model, of_bytes, ["a"], batch_size=0)
    torch.nn.init.constant_(model.model.norm.weight, math.nan)
    with pytest.raises(ValueError, match="log-probability of 'a' is not finite"):
        score_sentences(model, of_bytes, ["a"])


def test_without_a_token_before_them_the_first_of_a_sentence_is_not_scored():
    model, of_bytes = our_model(), load_tokenizer("bytes")
    (whole,) = score_sentences(model, of_bytes, ["abc"], predecessor=ord("x"))
    (given,) = score_sentences(model, of_bytes, ["abc"], predecessor=None)
    (rest,) = score_sentences(model, of_bytes, ["bc"], predecessor=ord("a"))
    assert given == pytest.approx(rest, rel=1e-5) and given > whole
    with pytest.raises(ValueError, match="no tokens to predict in 'a'"):
        score_sentences(model, of_bytes, ["a"], predecessor=None)


def test_the_command_writes_shares_and_differences(write, tmp_path, capsys):
    for seed, name in enumerate(("one", "two")):
        torch.manual_seed(seed)
        config = transformers.LlamaConfig(**{**TINY, "vocab_size": 257})
        transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / name)
        load_tokenizer("bytes").save_pretrained(tmp_path / name)
    records = write(
        *(record(sentence_good=f"{i} sleeps.", sentence_bad=f"{i} sleep.") for i in range(6))
    )
    models, out = [str(tmp_path / "one"), str(tmp_path / "two")], tmp_path / "out"
    options = ["--tasks", f"blimp={records}", "--out", str(out)]
    cli.main(["eval", *models, *options, "--probe", "6"])
    shown = capsys.readouterr().out
    assert "against one" in shown and "agreement" in shown and "paper probe of hidden" in shown
    result = read_result(EvalResult, out)
    of_all = result.of(RIGHT_PAIRS)["all"]
    paradigm = result.of(f"{RIGHT_PAIRS} by paradigm")["verbs"]
    assert of_all.scores["one"].count == paradigm.scores["two"].count == 6
    assert result.of("paper probe of routed vectors")["layer 0"].scores["two"].count == 6
    expected = of_all.scores["two"].value - of_all.scores["one"].value
    assert of_all.differences["two"].value == pytest.approx(expected)
    # Paradigms are on the page alone.
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "by paradigm" in page and "verbs" in page and "by paradigm" not in shown
    for argv, message in (
        ([*models], "--tasks"),
        ([*models, *options, "--probe", "3"], "a probe needs at least 5 pairs that share no"),
        (options, "name checkpoints and tasks: layermem eval"),
        ([*models, "--tasks", "blimp=nowhere"], "nowhere does not exist; give BLiMP's JSON lines"),
    ):
        with pytest.raises(SystemExit) as left:
            cli.main(["eval", *argv])
        assert message in str(left.value) + capsys.readouterr().err


@pytest.mark.parametrize("batch_size", [1, 7, None])
def test_pairs_of_equal_ids_tie_in_every_batch(batch_size):
    raw = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>")
    starts = ["a " * n for n in (3, 40, 5, 60, 7, 20, 9, 11, 13)]
    pairs = [pair("a", f"{start}who", f"{start}whom") for start in starts]
    margins = judge_pairs(our_model(), tokenizer, pairs, predecessor=2, batch_size=batch_size)
    assert (margins == 0).all()
