"""What is equal under a condition: steps at equal time, parameters, shapes of one preset."""

from dataclasses import replace

import pytest
from launchers import MadeUp
from recorded import SIZES

from layermem.models.registry import list_variants
from layermem_bench.config.host import VARIANT
from layermem_bench.config.run import Data, Host, Model, Run
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.efficiency.model_sizes import model_sizes, unknown_size
from layermem_bench.presets import get_preset
from layermem_bench.study.boards import board_of, open_boards, study_of_variants
from layermem_bench.study.carrying_out import carry_out
from layermem_bench.study.planning import (
    at_equal_parameters,
    at_equal_time,
    parameters,
    plain_parameters,
)

BASE = Run(preset="made-up", max_steps=40, model=SIZES)


@pytest.mark.parametrize(
    ("ratio", "steps"),
    [(0.5, 800), (0.995, 400), (1.0, 400), (1.009, 400), (1.02, 392), (1.25, 320), (900, 1)],
)
def test_slower_steps_are_fewer(ratio, steps):
    """Beyond what two timings of the same steps differ by."""
    assert at_equal_time(replace(BASE, max_steps=400), ratio).max_steps == steps


@pytest.mark.parametrize("variant", [name for name in list_variants() if name != "plain"])
@pytest.mark.parametrize("preset", ["tiny-lm", "tiny-aet-4", "tiny-chains", "tiny-mqar"])
def test_every_variant_can_have_the_plain_decoders_parameters(preset, variant):
    base = get_preset(preset)
    base = replace(base, model=replace(base.model, vocab_size=100))
    run = at_equal_parameters(replace(base, variant=variant), base)
    plain = plain_parameters(base)
    assert parameters(run) == pytest.approx(plain, rel=0.005)
    # Nothing but the mlp is changed, and it only where there is more than the tolerance.
    same = replace(run, model=replace(run.model, intermediate_size=base.model.intermediate_size))
    assert same == replace(base, variant=variant)
    assert (run.model == base.model) == (abs(parameters(same) / plain - 1) <= 0.005)


@pytest.mark.parametrize("variant", ["cla", "yoco", "fused_kv"])
def test_an_arm_of_fewer_parameters_has_a_wider_mlp(variant):
    base = get_preset("tiny-lm")
    run = at_equal_parameters(replace(base, variant=variant), base)
    assert run.model.intermediate_size > base.model.intermediate_size


def test_what_cannot_be_made_equal_is_refused():
    model = replace(SIZES, hidden_size=4, intermediate_size=1, num_hidden_layers=1)
    base = replace(BASE, model=model)
    with pytest.raises(ValueError, match=r"hyper_connections has \d+ parameters on made-up at 1x4"):
        at_equal_parameters(replace(base, variant="hyper_connections"), base)
    # Of a model that has its sizes there are no others.
    host = replace(base, variant=VARIANT, host=Host(model="some/model", train="all"), model=Model())
    with pytest.raises(ValueError, match="some/model"):
        at_equal_parameters(host, host)


def test_a_shape_has_the_first_ones_parameters():
    opened = open_boards(("tiny-lm@16x64", "tiny-lm@64x32", "tiny-lm", "recall"), "plain")
    wide, deep, preset, recall = (board.base for board in opened)
    assert [(board.name, board.shape) for board in opened] == [
        ("tiny-lm-16x64", "16x64"),
        ("tiny-lm-64x32", "64x32"),
        ("tiny-lm", ""),
        ("tiny-mqar", ""),
    ]
    assert recall.preset == "tiny-mqar"
    assert (deep.model.num_hidden_layers, deep.model.hidden_size) == (64, 32)
    # Heads keep their width, 8.
    assert deep.model.num_attention_heads == 4 and deep.model.num_key_value_heads is None
    assert wide.model.intermediate_size == 256 and deep.model.intermediate_size != 128
    assert abs(plain_parameters(deep) / plain_parameters(wide) - 1) <= 0.005
    assert preset == get_preset("tiny-lm")
    same = replace(wide, model=replace(wide.model, num_hidden_layers=8))
    assert same.id == preset.id


@pytest.mark.parametrize(
    ("names", "named"),
    [
        (["tiny-lm", "tiny-lm"], "tiny-lm, tiny-lm"),
        (["recall", "mqar"], "recall, mqar"),
        (["tiny-lm@64"], "tiny-lm@64'"),
        (["tiny-lm@4x20"], "width 20 is no whole number of heads of width 8"),
        (["aet-44"], "aet-44"),
        ([], "at least one"),
    ],
)
def test_boards_that_cannot_be_are_refused(names, named):
    with pytest.raises(ValueError, match=named):
        open_boards(names, "plain")


def test_a_tokenizer_of_the_hub_that_was_fetched_has_its_size(tmp_path, monkeypatch):
    """One that was not is taken for GPT-2's, which no equal parameters are made by."""
    run = replace(BASE, data=Data(tokenizer="org/small"), model=replace(SIZES, vocab_size=None))
    asked = study_of_variants([board_of(run, "plain,lime")], range(3), ("parameters",))
    assert model_sizes(run)[0]["vocab_size"] == 50257 and unknown_size(run) == "org/small"
    with pytest.raises(ValueError, match="org/small is not on this machine, and equal parameters"):
        carry_out(asked, tmp_path / "out", launcher=MadeUp())
    in_cache = tmp_path / "hub" / "models--org--small"
    load_tokenizer("bytes").save_pretrained(in_cache / "snapshots" / "abc")
    (in_cache / "refs").mkdir()
    (in_cache / "refs" / "main").write_text("abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert model_sizes(run)[0]["vocab_size"] == 257 and unknown_size(run) is None
