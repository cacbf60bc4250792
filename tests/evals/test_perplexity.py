"""Perplexity against one forward for each token, its memory, and what it refuses."""

import math

import numpy as np
import pytest
import torch
import transformers
from eval_fixtures import our_model
from tokenizers import Tokenizer, models, pre_tokenizers

from layermem_bench.evals.perplexity import cut_windows, perplexity
from layermem_bench.text import sources
from layermem_bench.text.tokenizers import load_tokenizer

TEXTS = ["a", "Zwölf Boxkämpfer jagen Viktor quer.", "", "layers read layers, " * 2]


@torch.inference_mode()
def one_forward_for_each_token(model, documents_ids, context, stride):
    """Return (loss, tokens before it in its window) of each token; ids begin with what is given."""
    losses = []
    for ids in documents_ids:
        for target in range(1, len(ids)):
            windows = max(0, math.ceil((target - context) / stride))
            before = torch.tensor([ids[windows * stride : target]])
            log_p = model(input_ids=before).logits[0, -1].double().log_softmax(-1)
            losses.append((-log_p[ids[target]].item(), before.shape[1]))
    return losses


def by_position(pairs, first, last):
    chosen = [loss for loss, position in pairs if first <= position <= last]
    return (len(chosen), sum(chosen) / len(chosen) if chosen else None)


@pytest.mark.parametrize(
    ("which", "context", "stride"),
    [("ours", 7, 3), ("ours", 16, 16), ("ours", 5, 1), ("ours", 24, None), ("gpt2", 13, 6)],
)
def test_it_equals_one_forward_for_each_token(which, context, stride):
    model, tokenizer = our_model() if which == "ours" else a_gpt2(), load_tokenizer("bytes")
    # The end token stands before a document, as in blocks of training.
    texts, ids = TEXTS, [[256, *text.encode()] for text in TEXTS]
    expected = one_forward_for_each_token(model, ids, context, stride or context // 2)
    measured = perplexity(model, tokenizer, iter(texts), context=context, stride=stride)
    total, size = sum(loss for loss, _ in expected), sum(len(text.encode()) for text in texts)
    assert (measured.tokens, measured.bytes) == (len(expected), size)
    assert measured.loss == pytest.approx(total / len(expected), rel=1e-5)
    assert measured.bits_per_byte == pytest.approx(total / math.log(2) / size, rel=1e-5)
    assert measured.perplexity == pytest.approx(math.exp(total / len(expected)), rel=1e-4)
    for (first, last), place in measured.positions.items():
        count, loss = by_position(expected, first, last)
        assert place == (count, pytest.approx(loss, rel=1e-5))
    assert sum(count for count, _ in measured.positions.values()) == measured.tokens
    assert measured.counts == [len(row) - 1 for row in ids]
    assert sum(measured.nats) == pytest.approx(total, rel=1e-5)


def a_gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=257, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=256
    )
    return transformers.GPT2LMHeadModel(config).eval()


def test_batches_and_modes_change_nothing():
    model, tokenizer = our_model().train(), load_tokenizer("bytes")
    one = perplexity(model, tokenizer, TEXTS, context=8, batch_size=1)
    many = perplexity(model, tokenizer, TEXTS, context=8, batch_size=5)
    assert model.training
    assert many.loss == pytest.approx(one.loss, rel=1e-6)
    assert many.nats == pytest.approx(one.nats, rel=1e-5)
    seen = []
    perplexity(model, tokenizer, TEXTS, context=8, progress=seen.append)
    assert seen == sorted(seen) and seen[-1] == one.tokens


def test_a_document_in_parts_is_one_document(monkeypatch):
    model, tokenizer, text = our_model(), load_tokenizer("bytes"), "one line\nand another, é\n" * 9
    whole = perplexity(model, tokenizer, [text, "b"], context=10, stride=4)
    monkeypatch.setattr(sources, "MAX_CHARACTERS", 25)
    assert len(list(sources.cut_document(text))) > 5
    parts = perplexity(model, tokenizer, [text, "b"], context=10, stride=4)
    assert (parts.nats, parts.sizes) == (whole.nats, whole.sizes)
    assert whole.counts[0] == len(text.encode())


@pytest.mark.parametrize(("context", "stride"), [(1, 1), (4, 1), (4, 3), (4, 4), (30, 7)])
def test_each_token_is_scored_once_with_as_much_context_as_promised(context, stride):
    for length in range(1, 40):
        parts = np.split(np.arange(1, length + 1), [length // 3, length // 2])
        scored = {}
        for ids, count in cut_windows(parts, context, stride, predecessor=0):
            assert len(ids) <= context + 1
            for place in range(len(ids) - count, len(ids)):
                assert ids[place] not in scored
                scored[int(ids[place])] = place
        assert sorted(scored) == list(range(1, length + 1))
        assert all(n >= min(token, context - stride + 1) for token, n in scored.items())


def words(*names, **special):
    raw = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="?"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=raw, **special)


def test_without_a_token_before_it_the_first_is_not_predicted_nor_its_bytes_counted():
    tokenizer, model = words("?", "ä", "bb", "c"), our_model("plain")
    measured = perplexity(model, tokenizer, ["ä bb c", "bb", "c bb"])
    assert measured.counts == [2, 0, 1]
    # " bb c" and " bb"; a document of one token has none to predict.
    assert measured.sizes == [5, 0, 3] and measured.bytes == 8
    expected = one_forward_for_each_token(model, [[1, 2, 3], [3, 2]], 64, 32)
    assert measured.loss == pytest.approx(sum(loss for loss, _ in expected) / 3, rel=1e-5)
    assert measured.unknown_tokens == 0
    ended = words("?", "ä", "bb", "c", eos_token="c", unk_token="?")
    with_end = perplexity(model, ended, ["ä bb zz"])
    assert (with_end.tokens, with_end.bytes) == (3, 8)
    assert with_end.unknown_tokens == 1


@pytest.mark.parametrize(
    ("texts", "windows", "named"),
    [
        (["ab"], {"context": 65}, "64"),
        (["ab"], {"context": 8, "stride": 9}, "stride"),
        (["", ""], {}, "no token"),
        ("abc", {}, r"\[text\]"),
    ],
)
def test_what_is_refused(texts, windows, named):
    with pytest.raises((ValueError, TypeError), match=named):
        perplexity(our_model("plain"), load_tokenizer("bytes"), texts, **windows)


def test_a_loss_that_is_not_finite_is_refused():
    model = our_model("plain")
    torch.nn.init.constant_(model.model.layers[1].mlp.down_proj.weight, math.nan)
    with pytest.raises(ValueError, match="text 1 is not finite"):
        perplexity(model, load_tokenizer("bytes"), ["", "ab"])


def test_a_model_that_does_not_say_its_longest_sequence_needs_a_context():
    config = transformers.BloomConfig(vocab_size=257, hidden_size=16, n_layer=1, n_head=2)
    model, tokenizer = transformers.BloomForCausalLM(config), load_tokenizer("bytes")
    with pytest.raises(ValueError, match="context"):
        perplexity(model, tokenizer, ["ab"])
    assert perplexity(model, tokenizer, ["ab"], context=4).tokens == 2


def test_texts_are_read_as_they_are_needed(monkeypatch):
    """A text of 0.2 MB in parts and 150 small ones."""
    monkeypatch.setattr(sources, "MAX_CHARACTERS", 20_000)
    model, tokenizer = our_model("plain"), words("?", "ninechars", "tencharsss", eos_token="?")
    asked, done, small = [], [0], "ninechars tencharsss " * 50

    def texts():
        for text in (small, small * 200, *[small] * 150):
            asked.append(done[-1])
            yield text

    options = {"stride": 64, "batch_size": 8, "progress": done.append}
    measured = perplexity(model, tokenizer, texts(), **options)
    assert measured.bytes == 351 * len(small)
    # All but what is waiting for a batch is predicted before the last text is asked for.
    assert asked[-1] > 0.9 * measured.tokens
