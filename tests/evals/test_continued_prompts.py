"""A run on a file goes on after a stop at any moment, and is never mixed with another."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny import TINY

from layermem.generation.generation import TextGenerator
from layermem.models.registry import lookup
from layermem_base.generation_settings import GenerationSettings
from layermem_bench.cli import main
from layermem_bench.evals.continued_prompts import OutputFile, describe

ABOUT = {"model": {"files": {"a": [1, 2]}}, "settings": {"seed": 0, "stop": ("x",)}}
BATCHES = [[2, 0], [1, 3], [4]]


def rows(batch):
    return [{"index": i, "completion": f"text é\u2028 {i}"} for i in batch]


def begin(path, about=ABOUT):
    return OutputFile(path, about, BATCHES)


def read(path):
    return [json.loads(line) for line in path.read_bytes().decode().split("\n")[:-1]]


@pytest.mark.parametrize("stopped_after", range(4))
@pytest.mark.parametrize("torn", ["", '{"index": 4, "comp', "half a batch"])
def test_a_run_goes_on(stopped_after, torn, tmp_path):
    path = tmp_path / "out.jsonl"
    first = begin(path)
    assert first.open() == [0, 1, 2]
    for batch in BATCHES[:stopped_after]:
        first.append(rows(batch))
    if torn:
        next_batch = [*BATCHES, [9]][stopped_after]
        whole = "".join(json.dumps(row) + "\n" for row in rows(next_batch[:1]))
        with first.part.open("a") as file:
            file.write(torn if torn.startswith("{") else whole if len(next_batch) > 1 else "{")
    again = begin(path)
    assert again.open() == list(range(stopped_after, 3))
    # Half a batch is done again, and so is not twice in the file.
    assert again.rows.keys() == {i for batch in BATCHES[:stopped_after] for i in batch}
    for number in range(stopped_after, 3):
        again.append(rows(BATCHES[number]))
    assert not path.exists()
    again.finish()
    assert read(path) == rows(range(5)) and not again.part.exists()
    assert begin(path).open() == []


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({**ABOUT, "settings": {"seed": 1, "stop": ["x"]}}, "settings.seed was 0, and is 1"),
        ({**ABOUT, "settings": {"seed": 0}}, r"settings.stop was \['x'\], and is None"),
        (
            {**ABOUT, "model": {"files": {"a": [1, 3]}}},
            r"model.files.a was \[1, 2\], and is \[1, 3",
        ),
    ],
)
@pytest.mark.parametrize("ended", [True, False])
def test_another_run_is_refused(about, message, ended, tmp_path):
    path = tmp_path / "out.jsonl"
    first = begin(path)
    first.open()
    for batch in BATCHES:
        first.append(rows(batch))
    if ended:
        first.finish()
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=f"is of another run: {message}.*name another --out"):
        begin(path, about).open()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    first.settings.write_text("{")
    with pytest.raises(ValueError, match="which says what it is of, is missing or damaged"):
        begin(path).open()
    first.settings.unlink()
    with pytest.raises(ValueError, match="which says what it is of, is missing or damaged"):
        begin(path).open()


def test_rows_of_other_code_are_of_another_run(tmp_path, monkeypatch):
    model = SimpleNamespace(location=tmp_path, base=None, revision=None)

    def output():
        about = describe(model, [], GenerationSettings(), "float32")
        return OutputFile(tmp_path / "out.jsonl", about, BATCHES)

    first = output()
    first.open()
    first.append(rows(BATCHES[0]))
    monkeypatch.setattr("layermem_bench.evals.continued_prompts.sources_digest", lambda: "other")
    with pytest.raises(ValueError, match="is of another run: sources was .* and is 'other'"):
        output().open()


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    first = begin(tmp_path / "out.jsonl")
    first.open()
    for batch in BATCHES:
        first.append(rows(batch))
    lines = first.part.read_bytes().split(b"\n")
    lines[1] = lines[1][:9]
    first.part.write_bytes(b"\n".join(lines))
    with pytest.raises(ValueError, match=r"out.jsonl.part, line 2 is damaged .*its batch is done"):
        begin(tmp_path / "out.jsonl").open()
    first.part.write_bytes(b"\n".join(lines[:1] + lines[2:]))
    assert begin(tmp_path / "out.jsonl").open() == [0]


def test_two_processes_do_not_write_one_file(tmp_path):
    one, other = begin(tmp_path / "out.jsonl"), begin(tmp_path / "out.jsonl")
    refused = pytest.raises(RuntimeError, match="another process is writing")
    with one.locked(), refused, other.locked():
        pass
    with other.locked():
        pass
    with pytest.raises(IsADirectoryError, match="is a folder; name a file"):
        begin(tmp_path).open()
    # Nor is a file that cannot be written one that another process writes.
    (tmp_path / ".out.jsonl.lock").unlink()
    (tmp_path / ".out.jsonl.lock").mkdir()
    with pytest.raises(OSError, match=r"out.jsonl cannot be written .*name another --out"):
        one.locked().__enter__()
    with pytest.raises(OSError, match=r"x cannot be written .*name another --out"):
        begin(Path("/proc/x")).locked().__enter__()


@pytest.fixture
def asked(tmp_path, tokenizer):
    """The command that continues nine prompts in batches of two, and its files."""
    torch.manual_seed(3)
    entry = lookup("lime")
    model = entry.causal_lm(entry.config(**{**TINY, "vocab_size": 12}, initializer_range=0.4))
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    prompts = tmp_path / "prompts.jsonl"
    texts = ["a b", "c", "d e f", "g", "h a", "b b b b", "e", "a c e g", "f"]
    prompts.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    options = ["--prompts", str(prompts), "--field", "text", "--do-sample", "--batch-size", "2"]
    return ["models", "generate", str(tmp_path / "model"), *options, "--max-new-tokens", "10"]


def test_a_stopped_command_writes_the_same_file(asked, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    main([*asked, "--out", str(tmp_path / "whole.jsonl")])
    done = read(tmp_path / "whole.jsonl")
    assert [row["index"] for row in done] == list(range(9))
    assert [row["prompt"] for row in done][:2] == ["a b", "c"]
    continue_batch, calls = TextGenerator.continue_batch, []

    def fail_at_the_third(self, batch):
        calls.append(batch)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return continue_batch(self, batch)

    monkeypatch.setattr(TextGenerator, "continue_batch", fail_at_the_third)
    out = tmp_path / "out.jsonl"
    with pytest.raises(SystemExit):
        main([*asked, "--out", str(out)])
    assert not out.exists()
    with pytest.raises(SystemExit, match=r"another run: settings.seed was 0, and is 1; name anot"):
        main([*asked, "--out", str(out), "--seed", "1"])
    prompts = tmp_path / "prompts.jsonl"
    text = prompts.read_text()
    prompts.write_text(text.replace("h a", "h b"))
    with pytest.raises(SystemExit, match=r"another run: prompts.sha256 was"):
        main([*asked, "--out", str(out)])
    prompts.write_text(text)
    main([*asked, "--out", str(out)])
    assert "4 of 9 prompts are done" in caplog.text
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    # Three that were done or tried before, and three that were left.
    assert len(calls) == 3 + 3
    main([*asked, "--out", str(out)])
    assert "has all 9 prompts already" in caplog.text and len(calls) == 6
    settings = json.loads((tmp_path / "out.jsonl.settings.json").read_text())
    assert settings["settings"]["do_sample"] and settings["prompts"]["count"] == 9
    os.utime(tmp_path / "model" / "model.safetensors", ns=(1, 1))
    with pytest.raises(SystemExit, match=r"another run: model.files.model.safetensors was"):
        main([*asked, "--out", str(out)])


def test_another_commit_of_a_model_on_the_hub_is_another_run(asked, hub_cache, tmp_path):
    at = asked.index(str(tmp_path / "model"))
    asked[at : at + 1] = ["org/model"]

    def write():
        main([*asked, "--out", str(tmp_path / "out.jsonl")])

    hub_cache.push("org/model", lambda folder: shutil.copytree(tmp_path / "model", folder))
    write()
    write()
    hub_cache.push("org/model", lambda folder: shutil.copytree(tmp_path / "model", folder))
    with pytest.raises(SystemExit, match=r"another run: model.commit was '0+1', and is '0+2'"):
        write()


def test_memory_that_does_not_suffice_is_a_sentence(asked, tmp_path, monkeypatch):
    def fail(self, batch, write=None):
        raise torch.OutOfMemoryError("out of memory\nmore")

    monkeypatch.setattr(TextGenerator, "continue_batch", fail)
    with pytest.raises(SystemExit, match=r"2 prompts at once do not fit in memory; lower --batch-"):
        main([*asked, "--out", str(tmp_path / "out.jsonl")])


@pytest.mark.slow
def test_a_killed_command_goes_on(asked, tmp_path):
    asked = [*asked, "--out", str(tmp_path / "out.jsonl")]
    main([*asked[:-1], str(tmp_path / "whole.jsonl")])
    part = tmp_path / "out.jsonl.part"
    process = subprocess.Popen([sys.executable, "-m", "layermem", *asked])
    while process.poll() is None and not (part.exists() and part.stat().st_size):
        time.sleep(0.01)
    process.kill()
    process.wait()
    main(asked)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
