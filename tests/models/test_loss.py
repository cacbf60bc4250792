"""The model's loss in chunks of tokens: transformers' loss and every gradient, without logits."""

import pytest
import torch
from tiny import TINY, make
from torch import nn

import layermem
from layermem.models.registry import lookup


def loss_and_gradients(model, **inputs):
    model.zero_grad()
    output = model(**inputs)
    output.loss.backward()
    return output, {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("chunk", [1, 7, 100])
@pytest.mark.parametrize("items", [None, 50], ids=["mean", "sum"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("variant", ["plain", "lime"])
def test_it_is_the_ordinary_loss(variant, tied, items, chunk, ids):
    entry = lookup(variant)
    model = make(entry.causal_lm, entry.config(**{**TINY, "tie_word_embeddings": tied}))
    labels = ids.clone()
    labels[0, :4], labels[2, 6:] = -100, -100
    inputs = {"input_ids": ids, "labels": labels, "use_cache": False}
    if items is not None:
        inputs["num_items_in_batch"] = torch.tensor(items)
    expected, theirs = loss_and_gradients(model, **inputs)
    output, ours = loss_and_gradients(model, **inputs, loss_chunk=chunk)
    assert output.logits is None
    torch.testing.assert_close(output.loss, expected.loss, rtol=1e-6, atol=1e-6)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-5, atol=1e-6)
    each = nn.functional.cross_entropy(
        expected.logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none"
    )
    torch.testing.assert_close(output.token_losses[:, :-1], each)
    assert not output.token_losses[:, -1].any()


def test_without_labels_there_are_logits_and_no_chunks(ids):
    model = layermem.build("plain", **TINY)
    assert torch.equal(model(ids, loss_chunk=3).logits, model(ids).logits)


def test_labels_shifted_already_are_taken_as_they_are(ids):
    model = layermem.build("lime", **TINY)
    inputs = {"labels": ids, "shift_labels": torch.roll(ids, -2, 1)}
    whole, chunked = model(ids, **inputs).loss, model(ids, **inputs, loss_chunk=3).loss
    torch.testing.assert_close(chunked, whole)


def with_dropout(model):
    model.lm_head = nn.Sequential(model.lm_head, nn.Dropout(0.5))


def with_a_hook(model):
    model.lm_head.register_forward_hook(lambda _, __, out: out * 0)


def with_another_forward(model):
    model.lm_head.forward = lambda x: x.new_zeros(*x.shape[:-1], TINY["vocab_size"])


def with_another_loss(model):
    model.loss_function = lambda logits, **_: logits.sum()


@pytest.mark.parametrize(
    "change", [with_dropout, with_a_hook, with_another_forward, with_another_loss]
)
def test_what_logits_in_chunks_would_leave_out_is_refused(change, ids):
    model = layermem.build("plain", **TINY)
    with pytest.raises(TypeError, match="loss_chunk"):
        model(ids, labels=ids, ignore_index=5, loss_chunk=3)
    change(model)
    with pytest.raises(TypeError):
        model(ids, labels=ids, loss_chunk=3)
