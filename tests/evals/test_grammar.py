"""Probes for grammar: vectors of sentences, folds that split no pair, a control at chance."""

import numpy as np
import pytest
import torch
from tiny import TINY, make

from layermem.models.registry import lookup
from layermem_bench.analysis.separability import FOLDS, separability
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.evals.grammar import distinct_pairs, probe_pairs, sentence_vectors
from layermem_bench.evals.minimal_pairs import Pair


def our_model():
    entry = lookup("lime")
    return make(entry.causal_lm, entry.config(**{**TINY, "vocab_size": 257}))


def pair(good, bad, paradigm="p"):
    return Pair(good=good, bad=bad, field="f", phenomenon="p", paradigm=paradigm)


def test_a_sentence_is_the_mean_of_its_tokens():
    model, sentences = our_model(), ["abc", "a longer one", "z"]
    vectors = sentence_vectors(model, load_tokenizer("bytes"), sentences)
    assert len(vectors["hidden"]) == len(vectors["routed"]) == TINY["num_hidden_layers"]
    for row, text in enumerate(sentences):
        ids = torch.tensor([[256, *text.encode()]])
        with torch.inference_mode():
            states = model(input_ids=ids, output_hidden_states=True).hidden_states
        # The last of them is behind the final norm.
        for layer in range(TINY["num_hidden_layers"] - 1):
            expected = states[layer + 1][0, 1:].mean(0).numpy()
            assert vectors["hidden"][layer][row] == pytest.approx(expected, abs=1e-5)


def test_what_distinguishes_sentences_is_found_and_the_control_is_at_chance():
    pairs = [pair(f"{i} is", f"{i} are") for i in range(40)]
    scores = probe_pairs(our_model(), load_tokenizer("bytes"), pairs)
    assert len(scores) == 2 * 2 * 2 * TINY["num_hidden_layers"]
    for layer in range(TINY["num_hidden_layers"]):
        name = f"layer {layer}"
        found, control = (
            scores["converged probe of hidden vectors", each] for each in (name, f"{name}, control")
        )
        assert found.count == 40 and found.value > 0.95 and len(found.repeats) == FOLDS
        assert found.value == pytest.approx(np.mean(found.repeats))
        assert abs(control.value - 0.5) < 0.25 and not control.repeats


def test_no_group_is_split_and_labels_are_shuffled_within_groups(monkeypatch):
    """With one feature for each group a probe that has seen half of a group would know it."""
    generator, groups = np.random.default_rng(0), np.repeat(np.arange(60), 2)
    labels, seen = np.tile([1, 0], 60), []

    def watch(features, labels, unseen, class_count, seed):
        seen.append((set(features[:, 0]), set(unseen[:, 0]), labels.mean()))
        return np.zeros(len(unseen), dtype=int)

    monkeypatch.setattr("layermem_bench.analysis.separability._predict_by_paper_probe", watch)
    features = np.stack([groups, generator.random(120)], axis=1)
    separability(features, labels, groups=groups)
    assert len(seen) == 10
    for fitted, tested, share in seen:
        assert not fitted & tested and share == 0.5


def test_pairs_that_share_a_sentence_are_left_out():
    pairs = [pair("a", "b"), pair("a", "c"), pair("d", "b"), pair("e", "f"), pair("g", "h", "q")]
    pairs += [pair(f"{i}", f"-{i}", f"r{i}") for i in range(4)]
    assert [one.good for one in distinct_pairs(pairs, 2)] == ["a", "e", "g", "0", "1", "2", "3"]
    assert len(distinct_pairs(pairs, 1)) == 6 and distinct_pairs(pairs, None) == []
    with pytest.raises(ValueError, match="at least 5 pairs that share no sentence, there are 1"):
        distinct_pairs(pairs[:3], 9)
