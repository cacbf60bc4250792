"""What arms cost: as torch counts, as the paper prints, at other sizes, on clusters; the tables."""

import importlib.util
import json
import tomllib
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import torch
from tiny import TINY
from torch.utils.flop_counter import FlopCounterMode

import layermem
from layermem.models.registry import list_variants, lookup
from layermem_bench import cli, presets
from layermem_bench.config.computing import get_device
from layermem_bench.config.counting import count_parameters
from layermem_bench.config.run import Compute, Data, Model, Optim, Run
from layermem_bench.costs import measuring
from layermem_bench.costs.closed_forms import Cost, count_cost, count_family, forward_flops
from layermem_bench.costs.measuring import Measurement
from layermem_bench.costs.model_sizes import model_sizes, reshaped, runs_of_arms
from layermem_bench.costs.plan import RATIOS, plan
from layermem_bench.pages import cost_tables
from layermem_bench.pages.page import in_bytes, with_unit
from layermem_bench.studies.boards import parse_arms
from layermem_bench.text.tokenizers import load_tokenizer

ROOT = Path(__file__).parents[2]
H100 = get_device("h100")


def runs_of(preset, arms, layers=None, width=None):
    """Return the runs of some arms at the sizes of a preset, or at others."""
    return runs_of_arms(reshaped(presets.get_preset(preset), layers, width), parse_arms(arms))


def counted(*args, **sizes):
    """Return what they cost, by arm."""
    return {arm: count_cost(arm, run) for arm, run in runs_of(*args, **sizes).items()}


@pytest.mark.parametrize(
    ("preset", "shares", "parameters", "flops"),
    [
        # Table 8.
        ("paper-1b-gqa", ["+0.00%", "+0.10%", "+0.08%"], 1.07607, 2.7615),
        ("paper-1b-full", ["+0.01%", "+1.42%", "+1.22%"], 1.17674, 2.9679),
    ],
)
def test_the_papers_table(preset, shares, parameters, flops):
    """Billions of parameters to five digits; teraFLOPs to what norms and rope may add."""
    plain, lime = counted(preset, "plain,lime").values()
    more = [
        getattr(lime, what) / getattr(plain, what) - 1
        for what in ("parameters", "forward", "forward_in_paper")
    ]
    assert [f"{share:+.2%}" for share in more] == shares
    assert plain.parameters / 1e9 == pytest.approx(parameters, abs=1e-5)
    assert plain.forward_in_paper / 1e12 == pytest.approx(flops, rel=5e-3)


@pytest.mark.parametrize("name", list_variants())
def test_the_closed_form_equals_torchs_flop_counter(name):
    """The counter counts attention to all keys, from which the causal half is subtracted here."""
    tokens = 12
    model = layermem.build(name, **TINY, attn_implementation="eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.ones(1, tokens, dtype=torch.long), use_cache=False)
    heads, width = TINY["num_attention_heads"], TINY["hidden_size"] // TINY["num_attention_heads"]
    attention = TINY["num_hidden_layers"] * heads * 4 * width * tokens**2
    honest = counter.get_total_flops() - attention * (tokens - 1) / (2 * tokens)
    entry = lookup(name)
    config = entry.config(**TINY)
    assert forward_flops(config, entry.variant, tokens) == pytest.approx(honest)
    assert count_parameters(config, entry.variant) == model.num_parameters()


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
    own = presets.get_preset("tiny-lm")
    assert (own.model.hidden_size, own.model.num_attention_heads) == (64, 8)
    grouped = replace(own, model=replace(own.model, num_key_value_heads=2))
    deeper = reshaped(grouped, 16, 96).model
    assert (deeper.num_hidden_layers, deeper.hidden_size, deeper.intermediate_size) == (16, 96, 384)
    assert (deeper.num_attention_heads, deeper.num_key_value_heads) == (12, 3)
    assert reshaped(own, width=80).model.num_key_value_heads is None
    with pytest.raises(ValueError, match="multiple of 32"):
        reshaped(grouped, width=80)


def test_more_layers_cost_routers_more_and_more_width_less():
    more = {}
    for layers, width in ((16, 2048), (64, 2048), (16, 4096)):
        plain, lime = counted("paper-1b-full", "plain,lime", layers, width).values()
        more[layers, width] = lime.forward / plain.forward - 1
    assert more[16, 2048] == pytest.approx(0.0142, abs=5e-5)
    assert more[64, 2048] > 3.5 * more[16, 2048]
    # Twice the heads route twice as wide a slot, but the mlp grows as much: the share stays.
    assert more[16, 4096] == pytest.approx(more[16, 2048], rel=0.1)


def test_an_arm_with_options_is_counted_as_itself():
    windowed, small = "lime:router=last:router_window=2", "plain:num_key_value_heads=1"
    biased = "plain:attention_bias=true:mlp_bias=true"
    costs = counted("tiny-aet-4", f"plain,lime,{windowed},{small},{biased}")
    plain = costs["plain"]
    assert plain.forward < costs[windowed].forward < costs["lime"].forward
    assert (plain.kv_heads, costs[small].kv_heads) == (4, 1)
    assert costs[small].cached < plain.cached
    # Of 4 layers: query, key, value, output; gate, up, down.
    assert costs[biased].parameters - plain.parameters == 4 * (4 * 32 + 2 * 128 + 32)
    assert costs[biased].forward == plain.forward


SMALL = Run(
    model=replace(presets.get_preset("tiny-lm").model, vocab_size=300, num_key_value_heads=4),
    data=Data(tokenizer="bytes", block_size=64),
    optim=Optim(batch_size=16),
    compute=Compute(micro_batch=4, precision="float32", loss_chunk=0),
)


@pytest.mark.parametrize("variant", ["plain", "lime"])
def test_a_plan_counts_what_autograd_keeps(variant):
    """Unchunked logits are kept once as log-probabilities; their gradients come later."""
    model = layermem.build(variant, **SMALL.model.sizes())
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and tensor.is_floating_point():
            kept[storage.data_ptr()] = storage
        return tensor

    ids = torch.randint(300, (4, 64))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    memory = plan(replace(SMALL, variant=variant), H100, 1, 0.4).memory
    expected = memory["activations"] + memory["slots"] + memory["logits and loss"] / 3
    assert sum(s.nbytes() for s in kept.values()) == pytest.approx(expected, rel=0.1)
    assert loss.requires_grad


def planned(arm="plain", device=H100, preset="paper-150m", **changes):
    """Return the plan of an arm on 16 devices."""
    (run,) = runs_of(preset, arm).values()
    return plan(replace(run, compute=replace(run.compute, **changes)), device, 16, 0.4)


def test_every_arm_is_planned_and_options_change_what_they_say():
    plain = planned()
    for arm in ("value_residual", "mudd", "recipe+mudd", "hyper_connections"):
        assert planned(arm).memory["slots"] > 0
    assert plain.memory["weights"] == 4 * plain.parameters and plain.fits
    assert plain.step == max(plain.arithmetic, plain.network)
    assert plain.seconds == pytest.approx(20_000 * plain.step)
    sharded, again = planned(shard=True), planned(checkpoint_activations=True)
    assert sharded.memory["optimiser"] == plain.memory["optimiser"] / 16
    assert sharded.network > plain.network and sharded.arithmetic == plain.arithmetic
    assert again.memory["activations"] < plain.memory["activations"]
    assert again.arithmetic == pytest.approx(4 / 3 * plain.arithmetic)
    assert planned(precision="float32").arithmetic == pytest.approx(989 / 67 * plain.arithmetic)
    assert planned(micro_batch=8).micro_batches == 8
    assert not planned(device=get_device("rtx4090"), preset="paper-1b-full").fits


def test_the_measured_ratio_is_the_recorded_one():
    record = json.loads((ROOT / "benchmarks/results/nvidia-h200_one_group.json").read_text())
    ratios = record["sections"]["compiled"]["rows"]["150M"]["ratios"]
    measured = ratios["lime deferred"] / ratios["plain"]
    assert {("lime", 12, 768): round(measured, 2)} == RATIOS
    assert planned("lime").arithmetic == pytest.approx(1.25 * planned().arithmetic)


def test_the_pages_have_the_counted_tables():
    spec = importlib.util.spec_from_file_location("counted", ROOT / "docs" / "counted_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, tables in module.tables_of_pages().items():
        page = (ROOT / "docs" / name).read_text(encoding="utf-8")
        for table in tables:
            assert f"\n{table}\n" in page, "run python docs/counted_tables.py"


def test_released_models_have_a_name_here_that_builds():
    models = tomllib.loads((ROOT / "docs" / "adoption.toml").read_text(encoding="utf-8"))["model"]
    sizes = {**TINY, "num_hidden_layers": 24, "hidden_size": 16, "intermediate_size": 16}
    named = set()
    for model in models:
        ((variant, options),) = parse_arms(model["here"]).values()
        layermem.build(variant, **sizes, **Model(options=options).variant_fields())
        assert model["wiring"] and model["seen"] and type(model["date"]) is date
        named.add((variant, model["name"]))
    assert named == {(v, name) for v in list_variants() for name in lookup(v).variant.released}


def test_variants_are_shown_at_one_shape():
    """Width 2048, 16 layers, 8 key-value heads of width 64, two bytes a number."""
    slot, pair = 2 * 8 * 64 * 2, "lime+hyper_connections"
    fields, _ = model_sizes(presets.get_preset("paper-1b-gqa"))
    rows = {row["variant"]: row for row in count_family(fields, [*list_variants(), pair])}
    depth = {name: int(row["bytes over depth"].replace(",", "")) for name, row in rows.items()}
    for name in ("plain", "lime", "hyper_connections"):
        assert rows[name]["cache bytes"] == f"{16 * slot:,}"
    assert depth["plain"] == 2048 * 2
    # The last layer's slot is read by no other.
    assert depth["lime"] == 2048 * 2 + slot * 15 // 16
    # Four streams and their mean.
    assert depth["hyper_connections"] == 5 * 2048 * 2
    # The last output and two new sources, each of these with its inverse root mean square.
    assert depth["attention_residuals"] == (3 * 2048 + 2) * 2
    assert (rows[pair]["seam"], rows["lime"]["seam"]) == ("memory and stream", "memory")
    assert rows[pair]["arXiv"] == "2502.09245, 2409.19606"
    assert [name for name, row in rows.items() if row["arXiv"] == "none"] == [
        *("gated_residual", "midpoint", "plain", "value_embeddings")
    ]


def test_arms_stand_beside_the_first_of_their_size():
    def cost(arm, layers, seconds, peak):
        step = Measurement(seconds=seconds, low=0.9 * seconds, high=seconds, peak=peak)
        sizes = {"layers": layers, "width": 8, "heads": 2, "kv_heads": 1, "tokens": 4}
        numbers = {"parameters": 1000, "forward": 1e3 * seconds, "forward_in_paper": 1.0}
        return Cost(preset="p", arm=arm, **sizes, **numbers, cached=2, read=4), "eager", step

    steps = [
        *(cost("plain", 4, 0.1, 2 * 10**9), cost("a", 4, 0.15, 2_500_000_000)),
        *(cost("plain", 8, 0.2, None), cost("a", 8, 0.1, 1)),
    ]
    rows = [row for row, _, _ in steps]
    table = cost_tables.counted_table(rows).rows
    assert table[0] == ["p: 4 x 8, 2 heads (1 kv), T 4", "plain", "1k", "100", "", "1"]
    assert table[1] == ["", "a", "1k", "150", "+50.00%", "1"] and table[3][4] == "-50.00%"
    assert cost_tables.cache_table(rows).rows[0][2:] == ["4B", "32B"]
    where, *others = cost_tables.measured_table(steps, "x").rows
    assert where[0] == "p: 4 x 8, 2 heads (1 kv), T 4, eager"
    assert [row[2:] for row in (where, *others)] == [
        ["100 ms (90 to 100)", "", "2GB", ""],
        ["150 ms (135 to 150)", "+50.00%", "2.5GB", "+25.00%"],
        ["200 ms (180 to 200)", "", "unknown", ""],
        ["100 ms (90 to 100)", "-50.00%", "1B", ""],
    ]


def test_large_numbers_are_short():
    assert [with_unit(1.07608e9, 6), with_unit(999, 3)] == ["1.07608B", "999"]
    assert [in_bytes(8.21e9, 3), in_bytes(512, 3)] == ["8.21GB", "512B"]


def test_the_command_measures_and_plans(capsys, monkeypatch):
    # Its processes take seconds; test_measuring.py has them.
    monkeypatch.setattr(measuring, "measure_peak_memory", lambda *_: 10**6)
    measured = ["--measure", "--tokens", "8", "--batch", "1", "--repeats", "2"]
    cli.main(["costs", "tiny-aet-4", "--layers", "1", "2", *measured])
    shown = " ".join(capsys.readouterr().out.split())
    assert "tiny-aet-4: 1 x 32, 4 heads, T 8, eager plain" in shown and "1MB" in shown
    cli.main(["costs", "paper-1b-gqa", "--gpus", "1", "--device", "rtx4090"])
    assert "does not fit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--widths", "33"], "width 33"),
        (["--variants", "plain,lame"], "'lame'"),
        (["--variants", "plain,lime:router=last"], "router_window"),
        (["--measure", "--repeats", "1"], "repeats"),
        (["--gpus", "8", "--device", "h10"], "h100"),
        (["--gpus", "48", "--device", "h100"], "64"),
    ],
)
def test_what_a_command_refuses(more, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        cli.main(["costs", "tiny-aet-4", *more])
    assert named in "".join((*capsys.readouterr(), str(left.value)))
