"""Losses of `layermem eval` from checkpoints and files to result and page, and what it refuses."""

import itertools
import json
import lzma
import math
import random
import shutil
from functools import partial
from types import SimpleNamespace

import pyarrow
import pytest
import torch
import transformers
from pyarrow import parquet
from small_run import a_run
from tiny import TINY
from tokenizers import Tokenizer, models, pre_tokenizers

from layermem_bench import cli
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.evals import losses
from layermem_bench.evals.perplexity import perplexity
from layermem_bench.results.eval import EvalResult
from layermem_bench.results.files import read_result
from layermem_bench.results.intervals import holm
from layermem_bench.train.run import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("perplexity")


@pytest.fixture(scope="module")
def run(folder):
    return train(a_run(folder, max_steps=2), folder / "lime").path


@pytest.fixture(scope="module")
def texts(folder):
    """The same three documents as JSON lines (compressed), Parquet; another as a text file."""
    documents = ["w1 w2 w3 " * 8, "w4 w5", "w6 " * 20]
    lines = "".join(json.dumps({"body": text}) + "\n" for text in [*documents, ""])
    with lzma.open(folder / "texts.jsonl.xz", "wt", encoding="utf-8") as file:
        file.write(lines)
    parquet.write_table(pyarrow.table({"body": documents}), folder / "texts.parquet")
    (folder / "text.txt").write_text("w7 w8", encoding="utf-8")
    return documents


def save_llama(path, tokenizer, **fields):
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**{**TINY, "vocab_size": 300, **fields})
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def tokenizer_of(words):
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="w0"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=raw)


def words():
    return tokenizer_of([f"w{i}" for i in range(13)])


def measure(folder, *words_of_command):
    """Measure what lies before "--texts" on what comes after it, up to the next option."""
    words_of_command = list(map(str, words_of_command))
    at = words_of_command.index("--texts") + 1
    options = ["--out", str(folder / "out")]
    if "--field" not in words_of_command:
        options += ["--field", "body"]
    rest = iter(words_of_command[at:])
    texts = list(itertools.takewhile(lambda word: not word.startswith("--"), rest))
    more = words_of_command[at + len(texts) :]
    tasks = [f"ppl={text}" for text in texts]
    cli.main(["eval", *words_of_command[: at - 1], "--tasks", *tasks, *more, *options])
    return read_result(EvalResult, folder / "out")


def test_checkpoints_are_compared_on_files(run, folder, texts, tmp_path, capsys):
    same = save_llama(tmp_path / "same", load_tokenizer("bytes"))
    other = save_llama(tmp_path / "other", words())
    given = folder / "texts.jsonl.xz"
    result = measure(tmp_path, run, same, other, "--texts", given, folder / "text.txt")
    shown = capsys.readouterr().out
    assert "loss, against lime" in shown and "bits per byte" in shown and "other tokens" in shown
    assert "other bytes" in shown
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "4 different documents of" in page and "other: no such token" in page
    assert result.arms == {}
    # The block size of the run, of 24, is the shortest.
    assert (result.options.context, result.options.stride) == (24, 12)
    bits, losses = (result.of("loss")[name] for name in ("bits per byte", "nats per token"))
    ours = losses.scores["lime"]
    model = transformers.AutoModelForCausalLM.from_pretrained(run / "final", dtype=torch.float32)
    documents = [*texts, "w7 w8"]
    expected = perplexity(model, load_tokenizer("bytes"), documents, context=24)
    assert ours.value == pytest.approx(expected.loss) and ours.count == expected.tokens
    assert bits.scores["lime"].value == pytest.approx(expected.bits_per_byte)
    assert bits.scores["lime"].count == len("".join(documents))
    (perplexities,) = result.of("perplexity").values()
    assert perplexities.scores["lime"].value == pytest.approx(expected.perplexity)
    against = losses.differences["same"]
    assert against.value == pytest.approx(losses.scores["same"].value - ours.value)
    low, high = against.interval
    assert low < against.value < high and against.p < 0.05
    assert bits.differences["same"].value == pytest.approx(against.value / math.log(2), rel=1e-6)
    # Losses of other tokens are not compared, nor are bits where one model does not predict the
    # first token's bytes, and no mean over seeds is made of them.
    for row in (losses, bits):
        assert set(row.differences) == {"same"} and not row.is_comparable


def test_of_many_models_p_values_are_adjusted():
    """By intervals alone, of eight models alike one in three tables would have one ahead."""
    generator = random.Random(0)
    sizes = [generator.randrange(50, 200) for _ in range(12)]
    hard = [generator.gauss(2, 0.3) for _ in sizes]
    found = {}
    for name in "abcd":
        nats = [n * (h + generator.gauss(0, 0.05)) for n, h in zip(sizes, hard, strict=True)]
        found[name] = SimpleNamespace(
            loss=sum(nats) / sum(sizes),
            bits_per_byte=sum(nats) / sum(sizes) / math.log(2),
            documents=SimpleNamespace(nats=nats, tokens=sizes, bytes=sizes),
            **dict.fromkeys(("bytes", "tokens", "unknown_tokens", "changed_documents"), 0),
            positions=(),
            ids_digest="same",
            perplexity=1.0,
        )
    first, *others = found.values()
    rows = {row.name: row for row in losses._rows(found) if row.differences}
    for name, between in (
        ("bits per byte", losses._bits_between),
        ("nats per token", losses._nats_between),
    ):
        raw = [between(each, first) for each in others]
        for each in raw:
            # Of one test, p is 0.05 where the interval ends at 0.
            assert (each.p < 0.05) == (not each.interval[0] <= 0 <= each.interval[1])
        adjusted = holm([each.p for each in raw])
        assert [each.p for each in rows[name].differences.values()] == adjusted
        assert adjusted != [each.p for each in raw]


@pytest.mark.parametrize("lost", ["bytes", "unknown_tokens", "changed_documents"])
def test_bits_of_other_bytes_are_not_compared(lost):
    def read(ids, bits, **others):
        counts = dict.fromkeys(("tokens", "unknown_tokens", "changed_documents"), 0) | others
        counts["bytes"] = 30
        return SimpleNamespace(
            loss=1.0,
            bits_per_byte=bits,
            documents=SimpleNamespace(
                nats=[4.0, 5.0, 6.0],
                tokens=[5, 5, 5],
                bytes=[10, 10, 10 - others.get("bytes", 0)],
            ),
            **counts,
            positions=(),
            ids_digest=ids,
            perplexity=1.0,
        )

    for others, is_compared in (({}, True), ({lost: 1}, False)):
        row = next(losses._rows({"a": read("a", 1.0), "b": read("b", 0.5, **others)}))
        assert row.name == "bits per byte"
        assert row.is_comparable == is_compared == bool(row.differences)
    # What the same tokens leave out, they leave out alike.
    if lost != "bytes":
        row = next(losses._rows({n: read("a", 1.0, **{lost: 1}) for n in "ab"}))
        assert row.is_comparable and row.differences


def test_losses_by_position_are_rows_with_a_place(run, folder, texts, tmp_path):
    result = measure(tmp_path, run, "--texts", folder / "texts.jsonl.xz", "--context", "6")
    placed = {row.at: row for row in result.of("loss").values() if row.at is not None}
    assert {at: row.name for at, row in placed.items()} == {
        **{1: "after 1 token", 2: "after 2 to 3 tokens", 4: "after 4 to 6 tokens"},
    }
    tokens = [row.scores["lime"].count for row in placed.values()]
    assert sum(tokens) == result.of("loss")["nats per token"].scores["lime"].count


def test_losses_without_weights_of_routers(run, folder, texts, tmp_path):
    plain = save_llama(tmp_path / "plain", load_tokenizer("bytes"))
    text = ["--texts", folder / "texts.jsonl.xz"]
    assert "loss without weights" not in measure(tmp_path, plain, run, *text).tables
    rows = measure(tmp_path, plain, run, *text, "--ablate").of("loss without weights")
    assert list(rows) == [
        "nothing left out",
        *("keys and values of the first layer", "keys and values of the other earlier layers"),
    ]
    # A model without routers has its own loss, whatever is left out of others.
    assert len({row.scores["plain"].value for row in rows.values()}) == 1
    assert len({row.scores["lime"].value for row in rows.values()}) == 3
    alone = measure(tmp_path, plain, *text, "--ablate")
    assert "loss without weights" not in alone.tables
    assert "No model has routers" in alone.parts[0].how


def test_kinds_of_files_and_the_number_of_documents(run, folder, texts, tmp_path):
    lines, table = folder / "texts.jsonl.xz", folder / "texts.parquet"
    of_lines = measure(tmp_path, run, "--texts", lines).of("loss")
    assert measure(tmp_path, run, "--texts", table).of("loss") == of_lines
    # Two documents of each text at most, and copies once.
    text = folder / "text.txt"
    two = measure(tmp_path, run, "--texts", lines, text, "--limit", "2").of("loss")
    assert two["bits per byte"].scores["lime"].count == len("".join([*texts[:2], "w7 w8"]))
    assert measure(tmp_path, run, "--texts", lines, table).of("loss") == of_lines
    window = ["--context", "8", "--stride", "8"]
    one = measure(tmp_path, run, run / "final", "--texts", folder / "text.txt", *window)
    assert (one.options.context, one.options.stride) == (8, 8)
    # Of a single document there is no interval.
    assert one.of("loss")["bits per byte"].differences["final"].interval == ()


def test_a_text_that_a_model_was_trained_on_is_named(run, folder, texts, tmp_path, caplog):
    other = save_llama(tmp_path / "other", load_tokenizer("bytes"))
    copied = tmp_path / "copied.jsonl"
    copied.write_bytes((folder / "words.jsonl").read_bytes())
    for learnt in (folder / "words.jsonl", copied):
        caplog.clear()
        result = measure(
            tmp_path / "seen", other, run, "--texts", learnt, "--limit", "3", "--field", "text"
        )
        said = f"lime learnt from {learnt}: of documents that a model was trained on"
        assert said in result.parts[0].how and said in caplog.text
    new = measure(tmp_path / "new", other, run, "--texts", folder / "texts.jsonl.xz")
    assert "learnt from" not in new.parts[0].how


def test_what_is_refused(run, folder, texts, tmp_path):
    refused = partial(measure, tmp_path)
    text = ["--texts", folder / "texts.jsonl.xz"]
    with pytest.raises(SystemExit, match="context of 4000 tokens is longer than the 2048 of lime"):
        refused(run, *text, "--context", "4000")
    with pytest.raises(SystemExit, match="stride must be from 1 to the context, 24, got 25"):
        refused(run, *text, "--stride", "25")
    with pytest.raises(SystemExit, match="limit must be at least 1, got 0"):
        refused(run, *text, "--limit", "0")
    with pytest.raises(SystemExit, match="name checkpoints and tasks"):
        refused(*text)
    with pytest.raises(SystemExit, match=r"has no field 'body' .*of eval by --field"):
        refused(run, "--texts", folder / "words.jsonl")
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"body": ""}\n', encoding="utf-8")
    with pytest.raises(SystemExit, match=r"there is no text in .*empty.jsonl"):
        refused(run, "--texts", empty)
    for again in (folder / "texts.jsonl.xz", folder):
        with pytest.raises(SystemExit, match=r"texts.jsonl.xz is read twice"):
            refused(run, *text, again)
    with pytest.raises(SystemExit, match=r"nowhere.txt does not exist"):
        refused(run, "--texts", tmp_path / "nowhere.txt")


def test_a_model_without_a_tokenizer_or_head_is_refused(folder, texts, tmp_path):
    text = ["--texts", folder / "texts.jsonl.xz"]
    config = transformers.GPT2Config(
        vocab_size=9, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(SystemExit, match=r"gpt2 has no tokenizer; save the one that it was trai"):
        measure(tmp_path, tmp_path / "gpt2", *text)
    sizes = transformers.LlamaConfig(**TINY)
    transformers.LlamaForCausalLM(sizes).save_pretrained(tmp_path / "llama")
    with pytest.raises(SystemExit, match=r"llama has no tokenizer \(.*; save the one that it was"):
        measure(tmp_path, tmp_path / "llama", *text)
    config = transformers.LlamaConfig(**{**TINY, "vocab_size": 300})
    transformers.LlamaModel(config).save_pretrained(tmp_path / "headless")
    load_tokenizer("bytes").save_pretrained(tmp_path / "headless")
    with pytest.raises(SystemExit, match=r"lacks 1 of the model's weights, such as lm_head.weight"):
        measure(tmp_path, tmp_path / "headless", *text)


def test_as_many_tokens_are_not_the_same_tokens(folder, texts, tmp_path):
    """Of two models one tells words apart which the other does not."""
    one = save_llama(tmp_path / "one", words())
    other = save_llama(tmp_path / "other", tokenizer_of(["w0", *(f"w{i}" for i in range(2, 13))]))
    result = measure(tmp_path, one, other, "--texts", folder / "texts.jsonl.xz", "--context", "8")
    nats = result.of("loss")["nats per token"]
    assert [score.count for score in nats.scores.values()] == [46 - 3] * 2
    assert not nats.is_comparable and nats.differences == {}


def test_documents_are_read_from_the_token_before_them_in_training(run, texts, folder, tmp_path):
    tokenizer = load_tokenizer("bytes")
    tokenizer.bos_token = "a"
    begun = shutil.copytree(run, tmp_path / "begun")
    tokenizer.save_pretrained(begun / "final")
    given = ["--texts", folder / "texts.jsonl.xz"]
    of_both = measure(tmp_path, run, begun, *given).of("loss")["nats per token"]
    assert of_both.scores["lime"] == of_both.scores["begun"]
    # A checkpoint or a copy has no run, and remembers how it was trained.
    copied = shutil.copytree(begun / "final", tmp_path / "copy")
    saved = measure(tmp_path, run, begun / "final", copied, *given)
    of_three = saved.of("loss")["nats per token"].scores
    assert of_three["lime"] == of_three["final"] == of_three["copy"]
    assert "in windows of 24 tokens" in saved.parts[0].how
    # What no run has trained is read as its tokenizer says.
    models = [save_llama(tmp_path / name, tokenizer, vocab_size=300) for name in ("a", "b")]
    (models[1] / "tokenizer_config.json").unlink()
    load_tokenizer("bytes").save_pretrained(models[1])
    other = measure(tmp_path, *models, *given, "--context", 24).of("loss")["nats per token"]
    assert other.scores["a"] != other.scores["b"]


def test_of_documents_that_were_kept_apart_the_first_token_is_not_predicted(
    run, texts, folder, tmp_path
):
    apart = train(a_run(folder, max_steps=1, data={"isolate_documents": True}), tmp_path / "apart")
    part = measure(tmp_path, run, apart.path, "--texts", folder / "texts.jsonl.xz").parts[0]
    (row,) = (row for row in part.rows if row.name == "nats per token")
    # Three documents; words are tokens of letters.
    assert row.scores["lime"].count == row.scores["apart"].count + len(texts)
    assert "apart: no such token, or none that was learnt" in part.how
