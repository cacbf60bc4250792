"""A mixture of sources: their shares, their order, and what is held out of all of them."""

import itertools
import json
import lzma
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from small_run import Interrupted, a_run, assert_same_end, interrupt, stop_at

from layermem_bench.config.run import Data, Run
from layermem_bench.data import sources
from layermem_bench.data.preparing import prepare
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.train.learning.text import TextLearning, build_text_datasets
from layermem_bench.train.run import train
from layermem_bench.train.sequences import DataOrder, MixedOrder

SIZES, SHARES = (7, 30, 200), (0.5, 0.3, 0.2)


def write(path, word, documents=40):
    texts = [" ".join(f"{word}{i * j}" for j in range(20)) for i in range(documents)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


@pytest.fixture
def mixed(tmp_path):
    """A run on words of three kinds, of which every block can be told."""
    further = [write(tmp_path / f"{word}.jsonl", word) for word in ("x", "yy")]
    mixture = tuple(f"{path}={share}" for path, share in zip(further, (0.3, 0.2), strict=True))
    return a_run(tmp_path, data={"mixture": mixture})


def kind_of(block):
    text = bytes(block["input_ids"].clamp(max=255).tolist())
    kinds = {word for word in (b"w", b"x", b"y") if word in text}
    (kind,) = kinds
    return kind


def test_every_number_of_steps_has_the_shares_and_each_source_its_own_order():
    order = list(MixedOrder(SIZES, SHARES, 1000, seed=3))
    firsts = [0, *itertools.accumulate(SIZES)]
    number_of = [sum(index >= first for first in firsts[1:]) for index in order]
    for count in range(1, 1001):
        for number, share in enumerate(SHARES):
            assert abs(number_of[:count].count(number) - share * count) < 1.5
    for number, (size, first) in enumerate(zip(SIZES, firsts, strict=False)):
        own = [i - first for i, n in zip(order, number_of, strict=True) if n == number]
        assert own == list(DataOrder(size, len(own), seed=3))
    # A source begins anew where it ends, and a longer run begins as a shorter one.
    assert set(order) >= set(range(7 + 30))
    assert order[:300] == list(MixedOrder(SIZES, SHARES, 300, seed=3))
    assert order != list(MixedOrder(SIZES, SHARES, 1000, seed=4))


def test_blocks_are_those_of_the_sources(mixed):
    learning = TextLearning(mixed)
    blocks = learning.train_data
    kinds = [kind_of(blocks[i]) for i in range(len(blocks))]
    assert [kinds.count(kind) for kind in (b"w", b"x", b"y")] == blocks.sizes
    assert kinds == sorted(kinds)
    validation = learning.validation_data
    counts = [len(part) for part in validation.parts]
    assert len(validation) == sum(counts)
    for share, count in zip((0.5, 0.3, 0.2), counts, strict=True):
        assert count == pytest.approx(share * sum(counts), abs=1)
    capped = TextLearning(replace(mixed, eval_blocks=10)).validation_data
    assert [len(part) for part in capped.parts] == [5, 3, 2]
    for index in (-1, len(blocks)):
        with pytest.raises(IndexError, match=f"block {index} of {len(blocks)}"):
            blocks[index]


def test_a_run_on_a_mixture_ends_the_same_when_it_is_interrupted(mixed, tmp_path, monkeypatch):
    whole = train(mixed, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_at(patch, 5, interrupt)
        with pytest.raises(Interrupted):
            train(mixed, tmp_path / "part")
    assert_same_end(train(mixed, tmp_path / "part", resume=True), whole)
    card = (whole.final / "README.md").read_text()
    assert "0.5 " in card and "yy.jsonl" in card


def test_workers_read_the_same_batches(mixed, tmp_path):
    alone = train(mixed, tmp_path / "alone")
    compute = replace(mixed.compute, workers=2)
    assert replace(mixed, compute=compute).id == mixed.id
    assert_same_end(train(replace(mixed, compute=compute), tmp_path / "workers"), alone)


def test_what_one_source_holds_out_no_other_teaches(tmp_path):
    """The second source has the documents of the first, in another order and with others."""
    first = write(tmp_path / "first.jsonl", "x", 60)
    lines = (tmp_path / "first.jsonl").read_text().splitlines()
    more = [json.dumps({"text": f"more {i}"}) for i in range(60)]
    (tmp_path / "second.jsonl").write_text("\n".join([*more, *reversed(lines)]) + "\n")
    second = str(tmp_path / "second.jsonl")
    data = Data(
        source=first,
        mixture=(f"{second}=0.5",),
        cache=str(tmp_path / "cache"),
        validation_share=0.2,
    )
    tokenizer = load_tokenizer("bytes")
    splits = [prepare(data.alone(source), tokenizer) for source in data.shares()]

    def documents(prepared):
        ids = prepared.array().tolist()
        return {
            tuple(group)
            for ended, group in itertools.groupby(ids, lambda token: token == prepared.end)
            if not ended
        }

    learnt = documents(splits[0][0]) | documents(splits[1][0])
    held_out = documents(splits[0][1]) | documents(splits[1][1])
    assert len(held_out) > 10 and not learnt & held_out


@pytest.mark.parametrize("name", ["books/b.txt", "b.txt.xz", "d.txt", "spaces.jsonl", "more.jsonl"])
def test_what_one_source_holds_out_and_another_would_train_on_is_refused(
    name, tmp_path, monkeypatch
):
    """A file by itself is split by its parts, and in the folder as one document; white space around
    a document counts where it is split."""
    monkeypatch.setattr(sources, "MAX_CHARACTERS", 600)
    (tmp_path / "books").mkdir()
    texts = {n: "".join(f"{i} of {n} and more.\n" for i in range(400)) for n in ("a", "b", "d")}
    for each in "ab":
        (tmp_path / "books" / f"{each}.txt").write_text(texts[each])
    write(tmp_path / "books" / "c.jsonl", "x", 60)
    # The same text, kept otherwise than in the folder.
    (tmp_path / "b.txt.xz").write_bytes(lzma.compress(texts["b"].encode()))
    (tmp_path / "d.txt").write_text(texts["d"])
    (tmp_path / "books" / "e.jsonl").write_text(json.dumps({"text": texts["d"]}) + "\n")
    lines = map(json.loads, (tmp_path / "books" / "c.jsonl").read_text().splitlines())
    spaces = [json.dumps({"text": f"{line['text']}\n"}) + "\n" for line in lines]
    (tmp_path / "spaces.jsonl").write_text("".join(spaces))
    write(tmp_path / "more.jsonl", "y", 60)
    mixture = (f"{tmp_path / name}=0.5",)
    run = a_run(
        tmp_path, data={"source": str(tmp_path / "books"), "mixture": mixture, "block_size": 8}
    )
    is_refused = name != "more.jsonl"
    with pytest.raises(ValueError, match="data.validation") if is_refused else nullcontext():
        build_text_datasets(run, load_tokenizer("bytes"))
    held = write(tmp_path / "held.jsonl", "zz")
    run = replace(run, data=replace(run.data, validation=held))
    build_text_datasets(run, load_tokenizer("bytes"))


def test_a_validation_of_its_own_is_the_same_for_all(mixed, tmp_path):
    held = write(tmp_path / "held.jsonl", "zz")
    run = replace(mixed, data=replace(mixed.data, validation=held))
    validation = TextLearning(run).validation_data
    assert not hasattr(validation, "parts")
    assert b"z" in bytes(validation[0]["input_ids"].clamp(max=255).tolist())


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        (("code",), "'code' is not SOURCE=SHARE with a share between 0 and 1"),
        (("=0.5",), "'=0.5' is not SOURCE=SHARE"),
        (("code=1",), "'code=1' is not"),
        (("code=nan",), "'code=nan' is not"),
        (("code=0.2", "code=0.3"), "names code twice"),
        (("stdlib=0.2",), "names stdlib twice"),
        (("code=0.7", "text=0.2", "more=0.1"), "leave nothing to data.source"),
        (("code=0.5", "text=0.5"), "leave nothing to data.source, stdlib; .* below 1"),
    ],
)
def test_shares_that_are_none_are_refused(mixture, message):
    with pytest.raises(ValueError, match=message):
        Data(mixture=mixture)


def test_what_cannot_be_mixed_is_refused(mixed, tmp_path):
    with pytest.raises(ValueError, match="data.subset=part .* leave them out"):
        Data(source="some/set", subset="part", mixture=("other/set=0.5",))
    copy = tmp_path / "copy.jsonl"
    copy.write_text((tmp_path / "x.jsonl").read_text())
    data = replace(mixed.data, mixture=(f"{tmp_path / 'x.jsonl'}=0.3", f"{copy}=0.3"))
    with pytest.raises(ValueError, match=r"x.jsonl and .*copy.jsonl of data.mixture hold the same"):
        TextLearning(replace(mixed, data=data))
    short = write(tmp_path / "short.jsonl", "s", 1)
    data = replace(mixed.data, mixture=(f"{short}=0.3",))
    with pytest.raises(ValueError, match="short.jsonl"):
        TextLearning(replace(mixed, data=data))


def test_a_mixture_is_another_run():
    data = Data(mixture=("code=0.5",))
    runs = [Run(), Run(data=data), Run(data=replace(data, mixture=("code=0.4",)))]
    assert len({run.id for run in runs}) == 3
    assert torch.equal(torch.tensor([0.5, 0.5]), torch.tensor(list(data.shares().values())))
