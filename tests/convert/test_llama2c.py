"""Checkpoints of llama2.c: the published story, its tokenizer, damaged files."""

import json
import struct

import pytest
import torch
from scripts import load_script
from stories import STORIES, needs_stories, stories
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from layermem.convert.converting import convert

LLAMA2C = load_script("examples/llama2c.py")

# The tokens of a small vocabulary behind the special ones and the bytes, the best score first.
PIECES = ["ab", "abc", "bc", " a", " ", "a", "b", "c", "é", "aa", "aaa"]


def pieces():
    """Return (bytes, score) of every token of the small vocabulary."""
    special = [(b"<unk>", 0.0), (b"\n<s>\n", 0.0), (b"\n</s>\n", 0.0)]
    of_bytes = [(f"<0x{byte:02X}>".encode(), 0.0) for byte in range(256)]
    return special + of_bytes + [(text.encode(), -float(i)) for i, text in enumerate(PIECES)]


def write_tokenizer(path, some):
    longest = max(len(data) for data, _ in some)
    rows = b"".join(struct.pack("<fi", score, len(data)) + data for data, score in some)
    path.write_bytes(struct.pack("<i", longest) + rows)


def encode_literally(some, text):
    """Return the ids of a text, pair by pair as llama2.c joins them."""
    ids_of = {data: i for i, (data, _) in enumerate(some)}
    ids = [1]
    if text:
        ids.append(ids_of[b" "])
    for letter in text:
        data = letter.encode()
        ids += [ids_of[data]] if data in ids_of else [byte + 3 for byte in data]
    while True:
        best, at = -1e10, None
        for i in range(len(ids) - 1):
            joined = ids_of.get(some[ids[i]][0] + some[ids[i + 1]][0])
            if joined is not None and some[joined][1] > best:
                best, at, new = some[joined][1], i, joined
        if at is None:
            return ids
        ids[at : at + 2] = [new]


@needs_stories
def test_the_published_checkpoint_tells_its_story(tmp_path):
    stories(tmp_path / "hf")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert type(model) is LlamaForCausalLM and model.num_parameters() == 260_032
    expected = json.loads(STORIES.with_name("reference_greedy.json").read_text())
    ids, text = expected["greedy_ids_from_bos"], expected["text"]
    start = tokenizer("", return_tensors="pt")
    told = model.generate(**start, do_sample=False, max_new_tokens=len(ids) - 1)[0].tolist()
    assert told == ids
    assert tokenizer.decode(told, skip_special_tokens=True) == text
    # A story begins with a space, which the tokenizer adds.
    assert tokenizer(text.removeprefix(" "))["input_ids"] == ids
    assert not list((tmp_path / "hf").glob("*.py"))
    # llama2.c ends at the token that begins a text.
    assert model.generation_config.eos_token_id == [2, 1]
    # With memory, which starts without effect.
    fields = {"router": "first", "router_window": 2}
    convert(str(tmp_path / "hf"), tmp_path / "lime", variant="lime", fields=fields)
    lime = AutoModelForCausalLM.from_pretrained(tmp_path / "lime")
    assert lime.config.router == "first" and len(AutoTokenizer.from_pretrained(tmp_path / "lime"))
    ids = torch.tensor([ids])
    assert torch.equal(lime(ids).logits, model(ids).logits)


def test_pairs_are_joined_by_their_scores(tmp_path):
    path = tmp_path / "tokenizer.bin"
    some = pieces()
    write_tokenizer(path, some)
    tokenizer = LLAMA2C.load_tokenizer(path, LlamaConfig(vocab_size=len(some)))
    for text in ("abc", "aabcab", "bcabc a", "aaaa", "é~", "", "x" * 20):
        assert tokenizer(text)["input_ids"] == encode_literally(some, text), text
    assert tokenizer("abc")["input_ids"] == [1, 259 + 4, 259 + 1]
    assert tokenizer.decode([259 + 8, 3 + 0xC3, 3 + 0xA9]) == "éé"


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-15], lambda data: data.replace(b"<0x41>", b"<0x99>")]
)
def test_a_damaged_tokenizer_is_refused(damage, tmp_path):
    path = tmp_path / "tokenizer.bin"
    write_tokenizer(path, pieces())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"tokenizer\.bin"):
        LLAMA2C.load_tokenizer(path, LlamaConfig(vocab_size=len(pieces())))
