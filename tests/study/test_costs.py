"""Costs along depth and width, counted and measured, written and drawn."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import layermem
from layermem.models.seams import Variant
from layermem_bench import cli, presets
from layermem_bench.cli.costs import Costs
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.efficiency import measuring
from layermem_bench.efficiency.model_sizes import model_sizes, resized
from layermem_bench.report import cost_tables
from layermem_bench.results.costs import Costs as CostsResult
from layermem_bench.results.files import read_result
from layermem_bench.study import costs
from layermem_bench.study.costs import count_costs

FIELDS = {
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def test_sizes_are_those_of_what_a_run_starts_from(tmp_path):
    tokenizer = load_tokenizer("bytes")
    tokenizer.save_pretrained(tmp_path)
    own = presets.get_preset("aet-4")
    fields, length = model_sizes(own)
    bytewise = replace(own, task=replace(own.task, tokenizer="bytes"))
    fields_of_bytes, longer = model_sizes(bytewise)
    assert fields_of_bytes["vocab_size"] == len(tokenizer) and longer > 1.5 * length
    assert {**fields_of_bytes, "vocab_size": fields["vocab_size"]} == fields
    sizes = '{"hidden_size": 48, "vocab_size": 300, "attention_bias": true}'
    (tmp_path / "config.json").write_text(sizes)
    started = replace(own, model=replace(own.model, pretrained=str(tmp_path)))
    fields_of_bytes, its_length = model_sizes(started)
    assert (fields_of_bytes["hidden_size"], fields_of_bytes["vocab_size"], its_length) == (
        48,
        300,
        longer,
    )
    assert fields_of_bytes["attention_bias"] is True
    # What is not on this machine is not fetched.
    away = replace(own, task=replace(own.task, tokenizer="some/where"))
    assert model_sizes(away)[0]["vocab_size"] == 50257


def test_another_width_keeps_heads_groups_and_the_mlps_ratio():
    wide = resized(FIELDS, layers=8, width=96)
    assert wide == {
        "hidden_size": 96,
        "intermediate_size": 384,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
    }
    assert resized({**FIELDS, "num_key_value_heads": None}, width=80)["num_key_value_heads"] == 5
    with pytest.raises(ValueError, match=r"width 80 is no whole number .* take a multiple of 32"):
        resized(FIELDS, width=80)


def test_more_layers_cost_routers_more_and_more_width_less():
    costs = count_costs(["paper-1b-full"], "plain,lime", layers=(16, 64), widths=(2048, 4096))
    more = {}
    for point in costs.points:
        flops = {name: cost["honest"].forward for name, cost in point.counted.items()}
        more[point.layers, point.width] = flops["lime"] / flops["plain"] - 1
    assert more[16, 2048] == pytest.approx(0.0142, abs=5e-5)
    assert more[64, 2048] > 3.5 * more[16, 2048]
    # Twice the heads route twice as wide a slot, but the mlp grows as much: the share stays.
    assert more[16, 4096] == pytest.approx(more[16, 2048], rel=0.1)


def test_an_arm_with_options_is_counted_as_itself():
    arms = "plain,lime,lime:router=last:router_window=2"
    (point,) = count_costs(["paper-depth-32"], arms).points
    assert list(point.counted) == arms.split(",")
    flops = [cost["honest"].forward for cost in point.counted.values()]
    assert flops[0] < flops[2] < flops[1]


def test_a_misspelt_option_is_not_counted_as_nothing():
    with pytest.raises(TypeError, match="has no field 'ruoter_window'; did you mean router_window"):
        count_costs(["tiny-aet-4"], "plain,lime:ruoter_window=2")


def test_sizes_are_those_of_the_first_variant():
    # A control of equal cache has fewer key-value heads, as its name says.
    (point,) = count_costs(
        ["tiny-aet-4"], "plain,lime,plain:num_key_value_heads=1:num_hidden_layers=2"
    ).points
    assert (point.layers, point.heads, point.kv_heads) == (4, 4, 4)
    last = list(point.counted)[-1]
    assert point.cache[last].held < point.cache["plain"].held


def test_biases_count_as_parameters():
    (point,) = count_costs(["tiny-aet-4"], "plain,plain:attention_bias=true:mlp_bias=true").points
    plain, biased = (by_counting["honest"] for by_counting in point.counted.values())
    # Of 4 layers: query, key, value, output; gate, up, down.
    assert biased.parameters - plain.parameters == 4 * (4 * 32 + 2 * 128 + 32)
    assert biased.forward == plain.forward


@pytest.mark.parametrize("extra", [0, 5])
def test_a_variant_of_a_plugin_counts_what_its_model_has(extra):
    class Mine(Variant):
        @classmethod
        def extra_parameters(cls, config):
            return extra

    entry = SimpleNamespace(variant=Mine, causal_lm=layermem.PlainForCausalLM)
    check = partial(costs._check_closed_form, "mine", layermem.PlainConfig(**FIELDS), entry)
    if extra:
        with pytest.raises(ValueError, match=r"mine counts .* correct Mine\.extra_parameters"):
            check()
    else:
        check()


@pytest.mark.parametrize(
    ("option", "sizes"),
    [("num_hidden_layers", {"layers": (2, 4)}), ("hidden_size", {"widths": (32, 64)})],
)
def test_an_option_that_contradicts_the_sizes_is_refused(option, sizes):
    (name,) = sizes
    message = rf"plain:{option}=32 has the same {option} at all --{name}: leave out its option"
    with pytest.raises(ValueError, match=message):
        count_costs(["tiny-aet-4"], f"lime,plain:{option}=32", **sizes)


def test_options_may_come_before_the_presets(capsys):
    cli.main(["costs", "--tokens", "8", "tiny-aet-4"])
    assert "tiny-aet-4: 4 x 32, 4 heads, T 8" in capsys.readouterr().out


def test_measured_costs_are_printed_written_and_drawn(tmp_path, capsys, monkeypatch):
    # Its processes take seconds; test_measuring.py has them.
    monkeypatch.setattr(measuring, "measure_peak_memory", lambda *_: 10**6)
    out, figure = tmp_path / "new" / "costs.json", tmp_path / "costs.svg"
    asked = ["costs", "tiny-aet-4", "--measure", "--layers", "1", "2", "--tokens", "8"]
    asked += ["--batch", "1", "--repeats", "2", "--out", str(out), "--figure", str(figure)]
    cli.main(asked)
    shown = " ".join(capsys.readouterr().out.split())
    assert "tiny-aet-4: 1 x 32, 4 heads, T 8, eager plain" in shown
    assert (
        "1 thread; torch" in shown
        and "float32; 1 sequences" in shown
        and "2 rounds side by side" in shown
    )
    assert "1MB +0.00%" in shown
    costs = read_result(CostsResult, out)
    assert costs.command.startswith("layermem costs tiny-aet-4 --measure")
    assert (costs.measuring.batch, costs.measuring.repeats) == (1, 2) and len(costs.points) == 2
    for point in costs.points:
        plain, lime = point.measured["eager"].values()
        # A layer alone has no router.
        assert lime.seconds < 3 * plain.seconds
        assert lime.peak == plain.peak == 10**6
    text = figure.read_text()
    assert "FLOPs, more than plain" in text and "time, more than plain" in text
    assert len(cost_tables.measured_table(costs).rows) == 4


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--widths", "33"], "width 33 is no whole number of heads of width 8"),
        (["--variants", "plain,lame"], "unknown variant 'lame'"),
        (["--measure", "--repeats", "1"], "repeats must be at least 2, got 1"),
        (["--variants", "plain,lime:router=last"], "router_window"),
        (
            ["--layers", "2", "4", "--figure", "x.svg", "--variants", "lime"],
            "a figure needs two --variants",
        ),
        (["--layers", "2", "4", "--figure", "x.xyz"], "end in .svg, .png or .pdf, got x.xyz"),
    ],
)
def test_what_a_command_refuses(more, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=message):
        cli.main(["costs", "tiny-aet-4", *more])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"figure": Path("x.svg")}, "a figure needs two sizes: --layers 4 8"),
        ({"layers": (2, 2), "figure": Path("x.svg")}, "a figure needs two sizes: --layers 4 8"),
        ({"modes": ()}, "name at least one preset and one of --modes"),
    ],
)
def test_what_no_command_can_ask(given, message):
    with pytest.raises(ValueError, match=message):
        Costs(**given)
