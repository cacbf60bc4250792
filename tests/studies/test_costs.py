"""Costs along depth and width, counted and measured, written and drawn."""

from dataclasses import replace

import pytest

from layermem_bench import cli, presets
from layermem_bench.config.result_files import read_result
from layermem_bench.costs import measuring
from layermem_bench.costs.model_sizes import model_sizes, resized
from layermem_bench.costs.result import Costs as CostsResult
from layermem_bench.pages import cost_tables
from layermem_bench.studies.costs import count_costs
from layermem_bench.text.tokenizers import load_tokenizer

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
    of_started, its_length = model_sizes(started)
    assert (of_started["hidden_size"], of_started["vocab_size"], its_length) == (48, 300, longer)
    assert of_started["attention_bias"] is True
    # What is not on this machine is not fetched.
    away = replace(own, task=replace(own.task, tokenizer="some/where"))
    assert model_sizes(away)[0]["vocab_size"] == 50257


def test_another_width_keeps_heads_groups_and_the_mlps_ratio():
    assert resized(FIELDS, layers=8, width=96) == {
        "hidden_size": 96,
        "intermediate_size": 384,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
    }
    assert resized({**FIELDS, "num_key_value_heads": None}, width=80)["num_key_value_heads"] == 5
    with pytest.raises(ValueError, match="multiple of 32"):
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
    windowed, small = "lime:router=last:router_window=2", "plain:num_key_value_heads=1"
    biased = "plain:attention_bias=true:mlp_bias=true"
    arms = f"plain,lime,{windowed},{small},{biased}"
    (point,) = count_costs(["tiny-aet-4"], arms).points
    counted = {arm: cost["honest"] for arm, cost in point.counted.items()}
    assert list(counted) == arms.split(",")
    flops = {arm: each.forward for arm, each in counted.items()}
    assert flops["plain"] < flops[windowed] < flops["lime"]
    # Sizes are those of the first variant.
    assert point.kv_heads == 4 and point.cache[small].held < point.cache["plain"].held
    # Of 4 layers: query, key, value, output; gate, up, down.
    more = counted[biased].parameters - counted["plain"].parameters
    assert more == 4 * (4 * 32 + 2 * 128 + 32) and flops[biased] == flops["plain"]
    with pytest.raises(TypeError, match="ruoter_window"):
        count_costs(["tiny-aet-4"], "plain,lime:ruoter_window=2")


def test_measured_costs_are_printed_and_written(tmp_path, capsys, monkeypatch):
    # Its processes take seconds; test_measuring.py has them.
    monkeypatch.setattr(measuring, "measure_peak_memory", lambda *_: 10**6)
    out = tmp_path / "new" / "costs.json"
    asked = ["costs", "tiny-aet-4", "--measure", "--layers", "1", "2", "--tokens", "8"]
    asked += ["--batch", "1", "--repeats", "2", "--out", str(out)]
    cli.main(asked)
    shown = " ".join(capsys.readouterr().out.split())
    assert "tiny-aet-4: 1 x 32, 4 heads, T 8, eager plain" in shown and "1MB +0.00%" in shown
    costs = read_result(CostsResult, out)
    assert costs.command.startswith("layermem costs tiny-aet-4 --measure")
    assert (costs.measuring.batch, costs.measuring.repeats) == (1, 2) and len(costs.points) == 2
    for point in costs.points:
        plain, lime = point.measured["eager"].values()
        assert plain.seconds > 0 and lime.peak == plain.peak == 10**6
    assert len(cost_tables.measured_table(costs).rows) == 4


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--widths", "33"], "width 33"),
        (["--variants", "plain,lame"], "'lame'"),
        (["--variants", "plain,lime:router=last"], "router_window"),
        (["--measure", "--repeats", "1"], "repeats"),
        (["--gpus", "8"], "--device"),
        (["--device", "h100"], "--gpus"),
        (["--gpus", "8", "--device", "h10"], "h100"),
        (["--gpus", "48", "--device", "h100"], "64"),
    ],
)
def test_what_a_command_refuses(more, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        cli.main(["costs", "tiny-aet-4", *more])
    assert named in "".join((*capsys.readouterr(), str(left.value)))
