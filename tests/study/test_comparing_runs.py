"""Runs that are named one by one: their boards and arms, what they recorded, what is refused."""

import json
from dataclasses import replace

import pytest
from layermem_bench.config.records import Records
from recorded import SIZES, record

from layermem.models.registry import lookup
from layermem_bench.config.host import VARIANT, Host
from layermem_bench.config.run import Compute, Data, Model, Optim, Task
from layermem_bench.efficiency.costs import cost
from layermem_bench.report.study_tables import runs_table
from layermem_bench.results.study import EVERY_STEP_RIGHT, LOSS, RIGHT_ANSWERS, SettingCosts
from layermem_bench.study.recipe import RECIPE
from layermem_bench.study.run_folders import compare_runs, find_comparable, name_arms
from layermem_bench.tasks.registry import get_task


def compared(tmp_path, *runs, **more):
    return compare_runs(runs, tmp_path / "out", command="layermem report", **more)


def arms_of(result, board=0):
    """Return the names of the runs of each arm of a board, in its order."""
    of = result.boards[board]
    runs = result.of(of.name, "recorded")
    return {
        arm.name: [run.name for run in runs if run.arm == arm.name] for arm in of.conditions[0].arms
    }


def runs_of(result):
    """Return the same of each board, without the names of arms."""
    return [list(arms_of(result, board).values()) for board in range(len(result.boards))]


def test_seeds_form_arms_and_plain_comes_first_in_a_folder(tmp_path):
    runs = tmp_path / "runs"
    for seed in (1, 0):
        record(runs / f"lime-s{seed}", seed=seed)
        record(runs / f"plain-s{seed}", variant="plain", seed=seed)
    (runs / "other").mkdir()
    found = compared(tmp_path, runs)
    arms = {"plain": ["plain-s0", "plain-s1"], "lime": ["lime-s0", "lime-s1"]}
    assert arms_of(found) == arms and list(arms_of(found)) == list(arms)
    # In the order asked for, the first is what the others are compared with.
    assert list(arms_of(compared(tmp_path, runs / "lime-s0", runs / "plain-s0"))) == [
        "lime",
        "plain",
    ]
    asked = compared(tmp_path, runs, against="lime")
    assert list(arms_of(asked)) == ["lime", "plain"]
    assert list(asked.boards[0].costs.points[0].counted) == ["lime", "plain"]
    with pytest.raises(ValueError, match="'lame'; there are plain, lime"):
        compared(tmp_path, runs, against="lame")
    # A run named twice is one run.
    assert len(compared(tmp_path, runs, runs / "lime-s0").runs) == 4
    saved = json.loads((tmp_path / "out" / "study.json").read_text())["runs"]
    assert {run["name"] for run in saved} == {*arms["plain"], *arms["lime"]}


def test_arms_are_called_after_what_differs_alone(tmp_path):
    fast, slow = Optim(lr=0.1), Optim(lr=0.01)
    options = replace(SIZES, options=("router_init=identity",))
    runs = [
        record(tmp_path / "a", optim=fast),
        record(tmp_path / "b", optim=slow),
        record(tmp_path / "c", optim=slow, model=options),
        record(tmp_path / "d", optim=slow, model=options, seed=1, save_every=5, log_every=2),
    ]
    assert arms_of(compared(tmp_path, *runs)) == {
        "lime:lr=0.1": ["a"],
        "lime:lr=0.01": ["b"],
        "lime:router_init=identity:lr=0.01": ["c", "d"],
    }


def test_runs_of_another_precision_are_no_seeds_of_one_arm(tmp_path):
    whole, half = Compute(precision="float32"), Compute(precision="bfloat16", micro_batch=4)
    runs = [record(tmp_path / "a", compute=whole), record(tmp_path / "b", seed=1, compute=half)]
    two = {"lime:precision=float32": ["a"], "lime:precision=bfloat16": ["b"]}
    assert arms_of(compared(tmp_path, *runs)) == two
    # How many sequences go at once is no difference.
    more = record(tmp_path / "c", seed=2, compute=replace(half, micro_batch=2))
    assert runs_of(compared(tmp_path, *runs[1:], more)) == [[["b", "c"]]]
    # "auto" is the precision that it came to.
    runs = [
        record(tmp_path / "auto" / name, seed=seed, about={"precision": precision})
        for seed, (name, precision) in enumerate((("a", "float32"), ("b", "bfloat16")))
    ]
    assert arms_of(compared(tmp_path, *runs)) == two


def test_a_run_that_recorded_no_precision_does_not_make_others_alike(tmp_path):
    precisions = {"plain": "float32", "lime": "bfloat16"}
    runs = [
        record(tmp_path / f"{variant}{seed}", variant=variant, seed=seed, about={"precision": p})
        for variant, p in precisions.items()
        for seed in (0, 1)
    ]
    died = record(tmp_path / "mudd0", variant="mudd", ended=False)
    named = {f"{variant}:precision={p}" for variant, p in precisions.items()}
    assert set(arms_of(compared(tmp_path, *runs))) == named
    assert set(arms_of(compared(tmp_path, *runs, died))) == {*named, "mudd:precision=auto"}
    # Where the others have one precision, it has that.
    assert set(arms_of(compared(tmp_path, *runs[:2], died))) == {"plain", "mudd"}


def test_the_run_by_which_a_rate_was_chosen_is_in_no_mean(tmp_path, caplog):
    runs = [record(tmp_path / f"s{seed}", seed=seed) for seed in (0, 1, 1000)]
    assert arms_of(compared(tmp_path, *runs)) == {"lime": ["s0", "s1"]}
    assert "s1000 is left out of lime: seed 1000" in caplog.text
    assert arms_of(compared(tmp_path, runs[-1])) == {"lime": ["s1000"]}


def test_other_code_of_plugins_is_named(tmp_path, caplog):
    for seed, digest in enumerate(("aa", "aa", "bb")):
        record(tmp_path / f"s{seed}", seed=seed, about={"plugins": digest, "commit": "c"})
    compared(tmp_path, tmp_path / "s0", tmp_path / "s1")
    assert "code of plugins" not in caplog.text
    found = compared(tmp_path, *(tmp_path / f"s{seed}" for seed in range(3)))
    assert "s0 and" in caplog.text and "s2 were trained with other code of plugins" in caplog.text
    assert "Not all of them were made with the same versions" in runs_table(found).caption


def test_models_of_other_sizes_are_no_seeds_of_one_arm(tmp_path):
    """The sizes of a model with new weights are named among the records."""
    runs = [
        record(
            tmp_path / f"{size}-s{seed}",
            seed=seed,
            variant=VARIANT,
            host=Host(model="tokenizer", memory="none", train="all"),
            model=Model(),
            records=Records(source="records.jsonl", from_config=f"{size}.json"),
        )
        for size, seeds in (("small", (0, 1)), ("large", (2, 3)))
        for seed in seeds
    ]
    assert arms_of(compared(tmp_path, *runs)) == {
        "plain:from_config=small.json": ["small-s0", "small-s1"],
        "plain:from_config=large.json": ["large-s2", "large-s3"],
    }


def test_what_learnt_other_data_is_on_another_board(tmp_path):
    runs = [
        record(tmp_path / "a"),
        record(tmp_path / "b", data=Data(cache="elsewhere"), seed=1),
        record(tmp_path / "c", data=Data(block_size=64)),
        record(tmp_path / "d", right=0.5),
        record(tmp_path / "e", right=0.5, task=Task(name="arithmetic", examples=60)),
        # On other validation data losses are others.
        record(tmp_path / "f", eval_blocks=3),
    ]
    found = compared(tmp_path, *runs)
    assert runs_of(found) == [[["a", "b"]], [["c"]], [["d"]], [["e"]], [["f"]]]
    assert [board.metric for board in found.boards] == [
        *(LOSS, LOSS, RIGHT_ANSWERS, RIGHT_ANSWERS, LOSS)
    ]
    names = [board.name for board in found.boards]
    assert "block_size=64" in names[1] and "eval_blocks=3" in names[4] and len(set(names)) == 5


def test_what_learnt_other_data_under_the_same_config_is_on_another_board(tmp_path, caplog):
    runs = [
        record(tmp_path / "a", about={"data": "first"}),
        record(tmp_path / "b", seed=1, about={"data": "first"}),
        record(tmp_path / "c", seed=2, about={"data": "second"}),
    ]
    found = compared(tmp_path, *runs)
    assert runs_of(found) == [[["a", "b"]], [["c"]]]
    assert [board.data["digest"] for board in found.boards] == ["first", "second"]
    assert len({board.name for board in found.boards}) == 2
    (said,) = caplog.messages
    assert "a and c" in said
    # What has not recorded it stays with the others.
    older = record(tmp_path / "d", seed=3)
    assert runs_of(compared(tmp_path, *runs[:2], older)) == [[["a", "b", "d"]]]


def test_seeds_that_started_from_other_weights_are_no_arm(tmp_path):
    runs = [
        record(tmp_path / "a", about={"weights": "first"}),
        record(tmp_path / "b", seed=1, about={"weights": "second"}),
        # What has not recorded it stays with the others.
        record(tmp_path / "c", seed=2),
    ]
    with pytest.raises(
        ValueError, match=r"/a and .*/b were .* different weights .*\(first, second\)"
    ):
        compared(tmp_path, *runs)
    assert runs_of(compared(tmp_path, runs[0], runs[2])) == [[["a", "c"]]]


def test_what_started_elsewhere_is_compared_where_the_tokens_are_the_same(tmp_path):
    for name, numbers in (("llama", 9), ("with-memory", 9), ("other", 8)):
        get_task("arithmetic").tokenizer(value_max=numbers).save_pretrained(tmp_path / name)

    def started(name, variant):
        model = replace(SIZES, pretrained=str(tmp_path / name))
        return record(tmp_path / f"from-{name}", variant=variant, model=model)

    runs = [started("llama", "plain"), started("with-memory", "lime"), started("other", "plain")]
    found = compared(tmp_path, *runs)
    assert runs_of(found) == [[["from-llama"], ["from-with-memory"]], [["from-other"]]]
    # Runs are found by the name of their board.
    assert len({board.name for board in found.boards}) == 2


def test_what_a_page_refuses_no_figure_draws(tmp_path):
    model = replace(SIZES, pretrained="/nowhere/m")
    runs = [
        record(tmp_path / f"l{i}", seed=i, model=model, about={"weights": f"w{i}"}) for i in (0, 1)
    ]
    for read in (lambda: compared(tmp_path, *runs), lambda: find_comparable(runs)):
        with pytest.raises(ValueError, match="from different weights of /nowhere/m"):
            read()


def test_what_all_runs_have_is_named_where_it_makes_a_variant_another(tmp_path):
    recipe = replace(SIZES, options=tuple(f"{name}={text}" for name, text in RECIPE.items()))
    biased = replace(SIZES, options=("attention_bias=true", "router=full"))
    for name, model, called in (("recipe", recipe, "recipe"), ("lime", biased, "lime")):
        runs = [record(tmp_path / f"{name}{i}", seed=i, model=model) for i in range(2)]
        assert set(name_arms(find_comparable(runs)).values()) == {called}


def test_seeds_that_are_added_are_another_look(tmp_path):
    runs = {
        (variant, seed): record(tmp_path / f"{variant}{seed}", variant=variant, seed=seed)
        for seed in range(4)
        for variant in ("plain", "lime")
    }

    def looks(*more, seeds=()):
        named = [path for (_, seed), path in runs.items() if seed in seeds]
        return compared(tmp_path, *named, *more).boards[0].conditions[0].looks

    assert looks(seeds=(0, 1)) == looks(seeds=(0, 1)) == ((0, 1),)
    assert looks(seeds=range(4)) == ((0, 1), (0, 1, 2, 3))
    # A seed that has not ended was not looked at.
    begun = record(tmp_path / "begun", seed=4, ended=False)
    assert looks(begun, seeds=range(4)) == ((0, 1), (0, 1, 2, 3))
    other = [record(tmp_path / f"other{seed}", seed=seed, optim=Optim(lr=0.5)) for seed in range(3)]
    assert looks(*other) == ((0, 1, 2),)


def test_seeds_that_one_arm_alone_gets_are_another_look(tmp_path):
    plain = [record(tmp_path / f"plain{seed}", variant="plain", seed=seed) for seed in range(4)]

    def looks(count):
        lime = [tmp_path / f"lime{seed}" for seed in range(count)]
        for seed, path in enumerate(lime):
            if not path.exists():
                record(path, variant="lime", seed=seed)
        return compared(tmp_path, *plain, *lime).boards[0].conditions[0].looks

    assert len(looks(2)) == len(looks(2)) == 1
    assert len(looks(3)) == 2
    assert looks(4) == looks(4) == ((0, 1, 2, 3),) * 3
    # An arm that is new is looked at for the first time.
    new = [record(tmp_path / f"mudd{seed}", variant="mudd", seed=seed) for seed in range(4)]
    lime = [tmp_path / f"lime{seed}" for seed in range(4)]
    again = compared(tmp_path, *plain, *lime, *new).boards[0].conditions[0].looks
    assert again == ((0, 1, 2, 3),) * 3


def test_arms_that_started_from_different_weights_of_one_path_are_refused(tmp_path):
    """As where the model at the path was trained anew between them."""
    model = replace(SIZES, pretrained="base/final")
    starts = {"plain": "aaa", "lime": "bbb"}
    paths = [
        record(tmp_path / f"{v}{s}", variant=v, seed=s, model=model, about={"weights": weights})
        for v, weights in starts.items()
        for s in range(2)
    ]
    with pytest.raises(ValueError, match="started from different weights of base/final"):
        compared(tmp_path, *paths)
    assert compared(tmp_path, *paths[:2])


def test_what_a_run_recorded(tmp_path):
    record(tmp_path / "lime-s0", final=0.25, right=0.75)
    result = compared(tmp_path, tmp_path / "lime-s0")
    (one,) = result.runs
    assert one.state == "ended" and one.steps == one.max_steps == 40
    assert one.about["command"] == "layermem train made-up --seed 0"
    assert one.metrics == {LOSS: 0.25, RIGHT_ANSWERS: 0.75, EVERY_STEP_RIGHT: 0.375}
    shares = {name: metric.is_share for name, metric in result.metrics.items()}
    assert shares == {LOSS: False, RIGHT_ANSWERS: True, EVERY_STEP_RIGHT: True}
    assert one.tokens_per_second == 52.5
    assert [row.flops for row in one.validations] == [7000, 14000, 21000, 28000]


def test_what_diverged_is_judged_by_nothing(tmp_path):
    record(tmp_path / "lost", rows=2, max_steps=40, diverged=25, right=0.5)
    old = record(tmp_path / "old", seed=1, right=0.5)
    *kept, last = (old / "metrics.jsonl").read_text().splitlines(keepends=True)
    (old / "metrics.jsonl").write_text("".join([*kept, last.replace("0.5,", "NaN,", 1)]))
    runs = {run.name: run for run in compared(tmp_path, tmp_path / "lost", old).runs}
    assert {name: run.note for name, run in runs.items()} == {
        "lost": "step 25: the loss is not finite at step 25",
        "old": "step 40: the validation loss is nan",
    }
    assert all(run.state == "diverged" and run.metrics == {} for run in runs.values())
    # JSON has no word for what is not finite.
    assert "NaN" not in (tmp_path / "out" / "study.json").read_text()


def test_costs_are_those_of_the_model_that_was_saved(tmp_path):
    plain, lime = record(tmp_path / "plain", variant="plain"), record(tmp_path / "lime")
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "vocab_size": 70, "router": "full"}
    for path in (plain, lime):
        (path / "final" / "config.json").write_text(json.dumps(sizes))
    costs = compared(tmp_path, plain, lime).boards[0].costs
    (point,) = costs.points
    assert (point.layers, point.width) == (3, 32)
    assert list(point.counted) == ["plain", "lime"]


def test_sizes_of_a_model_that_is_not_here_are_not_the_presets(tmp_path):
    model = replace(SIZES, pretrained="not/here")
    paths = [record(tmp_path / f"{v}0", variant=v, model=model) for v in ("plain", "lime_half")]
    board = compared(tmp_path, *paths).boards[0]
    assert board.costs == SettingCosts()
    assert {arm.parameters for arm in board.conditions[0].arms} == {None}
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "vocab_size": 70}
    for path, more in zip(paths, ({}, {"storage": 2}), strict=True):
        (path / "final" / "config.json").write_text(json.dumps(sizes | more))
    costs = compared(tmp_path, *paths).boards[0].costs
    assert [cache.held for cache in costs.points[0].cache.values()] == [256, 128]


@pytest.mark.parametrize(
    "options",
    [("storage=half",), ("storage=half", "upper=mix"), ("router_grain=head",)],
    ids=":".join,
)
def test_runs_of_options_that_a_variant_has_no_more_are_compared_without_costs(tmp_path, options):
    recipe = tuple(f"{name}={value}" for name, value in RECIPE.items())
    plain = record(tmp_path / "p", variant="plain")
    half = record(tmp_path / "h", model=replace(SIZES, options=options))
    of_recipe = record(tmp_path / "r", model=replace(SIZES, options=(*recipe, "storage=half")))
    found = compared(tmp_path, plain, half, of_recipe)
    assert list(arms_of(found)) == ["plain", f"lime:{':'.join(options)}", "recipe:storage=half"]
    assert found.boards[0].costs == SettingCosts()


def test_costs_of_a_run_that_started_from_a_windowed_model_are_those_of_its_window(tmp_path):
    saved = {"hidden_size": 32, "num_attention_heads": 2, "head_dim": 24, "num_hidden_layers": 6}
    window = {"router": "last", "router_window": 2}
    started = record(tmp_path / "started", model=replace(SIZES, pretrained="a/model"))
    (started / "final" / "config.json").write_text(json.dumps(saved | window))
    (point,) = compared(tmp_path, started).boards[0].costs.points
    sizes = {**saved, "intermediate_size": 64, "vocab_size": 50, **window}
    expected = cost(lookup("lime").config(**sizes), lookup("lime").variant, point.tokens)
    assert point.counted["lime"]["honest"] == expected


def test_costs_of_an_arm_that_has_not_ended_are_beside_the_others(tmp_path):
    plain = record(tmp_path / "plain", variant="plain")
    saved = {"num_key_value_heads": 2, "num_attention_heads": 2}
    (plain / "final" / "config.json").write_text(json.dumps(saved))
    (point,) = (
        compared(tmp_path, plain, record(tmp_path / "lime", ended=False)).boards[0].costs.points
    )
    assert list(point.counted) == ["plain", "lime"]
    # 1,000 tokens in 10 steps of 32 sequences.
    assert point.tokens == 3


def test_other_sizes_are_points_with_their_own_presets(tmp_path):
    wide = replace(SIZES, hidden_size=32)
    runs = [record(tmp_path / "a"), record(tmp_path / "b", model=wide, preset="wide")]
    (board,) = compared(tmp_path, *runs).boards
    assert [(p.preset, p.width) for p in board.costs.points] == [("made-up", 16), ("wide", 32)]
    assert board.name.startswith("made-up, wide (")


def test_folders_of_one_name_have_longer_names(tmp_path):
    runs = [record(tmp_path / str(seed) / "run", seed=seed) for seed in (0, 1)]
    assert [run.name for run in compared(tmp_path, *runs).runs] == ["0/run", "1/run"]


def test_a_run_that_failed_before_its_first_step_is_not_left_out_in_silence(tmp_path, caplog):
    record(tmp_path / "runs" / "lime-s0")
    (tmp_path / "runs" / "lime-s1").mkdir()
    (tmp_path / "runs" / "lime-s1" / "error.txt").write_text("no such file")
    (tmp_path / "runs" / "notes").mkdir()
    assert [run.name for run in compared(tmp_path, tmp_path / "runs").runs] == ["lime-s0"]
    (said,) = caplog.messages
    assert "lime-s1 is left out" in said


def test_an_arm_that_no_model_can_have_does_not_stop_the_others(tmp_path):
    record(tmp_path / "runs" / "plain-s0", variant="plain")
    # As its folder is left where a start is refused.
    impossible = replace(SIZES, options=("router=lasst",))
    path = record(tmp_path / "runs" / "lime-s0", model=impossible, ended=False)
    (path / "metrics.jsonl").unlink()
    result = compared(tmp_path, tmp_path / "runs")
    (point,) = result.boards[0].costs.points
    assert point.counted.keys() == {"plain"} and len(arms_of(result)) == 2


def test_what_is_no_run_is_said(tmp_path):
    one, copy = record(tmp_path / "one"), record(tmp_path / "copy")
    (tmp_path / "empty").mkdir()
    for runs, error, message in (
        ([], ValueError, "at least one"),
        ([tmp_path / "nowhere"], FileNotFoundError, "nowhere does not exist"),
        ([tmp_path / "empty"], ValueError, "empty is no run folder"),
        ([one / "config.yaml"], FileNotFoundError, "config.yaml is a file"),
        ([one, copy], ValueError, r"one and .*copy are one run, [0-9a-f]{12}; name one"),
    ):
        with pytest.raises(error, match=message):
            compared(tmp_path, *runs)


def test_two_runs_of_one_seed_and_arm_are_not_mixed(tmp_path):
    one, other = record(tmp_path / "one"), record(tmp_path / "two", log_every=5)
    with pytest.raises(ValueError, match="one and .*two are one run, [0-9a-f]{12}; name one"):
        compared(tmp_path, one, other)
    # What "auto" came to is what the other asked for.
    about = {"about": {"precision": "float32"}}
    one = record(tmp_path / "came-to", **about)
    other = record(tmp_path / "asked", compute=Compute(precision="float32"), **about)
    with pytest.raises(ValueError, match="came-to and asked are both seed 0 of lime .* name one"):
        compared(tmp_path, one, other)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("result.json", '{"accuracy": 0.5'),
        ("result.json", "{}"),
        ("metrics.jsonl", "12\n"),
        ("config.yaml", "variant: lime\nnew_field: 1\n"),
        ("config.yaml", "variant: [lime\n"),
        ("config.yaml", ""),
        ("final/config.json", "{"),
    ],
)
def test_a_damaged_run_is_named(file, text, tmp_path):
    one, other = record(tmp_path / "one", seed=1, right=0.5), record(tmp_path / "two", right=0.5)
    (other / file).write_text(text)
    with pytest.raises(ValueError, match=r"two holds files that are damaged"):
        compared(tmp_path, one, other)


def test_records_of_another_run_or_of_half_a_run_are_not_taken_for_its_own(tmp_path):
    one, other = (record(tmp_path / f"s{seed}", seed=seed, right=0.5) for seed in (0, 1))
    kept = (other / "metrics.jsonl").read_text()

    def refused(message):
        with pytest.raises(ValueError, match=rf"s1 holds files that are damaged .*{message}"):
            compared(tmp_path, one, other)

    # The last validation lost: the one before it would be a plausible number.
    (other / "metrics.jsonl").write_text("".join(kept.splitlines(keepends=True)[:-1]))
    refused("last step 40: the last is of step 30")
    rows = [row for row in kept.splitlines(keepends=True) if "val_loss" not in row]
    (other / "metrics.jsonl").write_text(rows[0])
    refused("there is none at all")
    # Two records in one file.
    (other / "metrics.jsonl").write_text((one / "metrics.jsonl").read_text() + kept)
    refused("step 10 comes after step 40")
    (other / "metrics.jsonl").write_text(kept + kept.splitlines()[-1].replace("0.5", "0.4"))
    refused("step 40 comes after step 40")
    (other / "metrics.jsonl").write_text(kept.replace('"val_loss": ', '"val_loss": -'))
    refused("val_loss cannot be negative")
    (other / "metrics.jsonl").write_text(kept)
    result = json.loads((other / "result.json").read_text())
    (other / "result.json").write_text((one / "result.json").read_text())
    refused("result.json is of run [0-9a-f]{12}, its folder of run [0-9a-f]{12}")
    for share in (float("nan"), 52, -0.1):
        (other / "result.json").write_text(json.dumps({**result, "accuracy": share}))
        refused("accuracy must be from 0 to 1")
    for ends in ("interval", "steps_interval"):
        (other / "result.json").write_text(json.dumps({**result, ends: [0.96, 0.99]}))
        refused(f"{ends} must be two ends around 0")


def test_other_test_problems_are_not_compared(tmp_path):
    runs = [record(tmp_path / f"s{seed}", seed=seed, right=0.5) for seed in (0, 1)]
    results = [json.loads((path / "result.json").read_text()) for path in runs]
    for changes, said in (
        ([{"problems": "first"}, {"problems": "second"}], "s0 and s1 solved different"),
        ([{"solutions": "first"}, {"solutions": "second"}], "s0 and s1 were graded by different"),
        # Solved by fewer problems, it is another measure.
        ([{}, {"count": 10}], "s0 solved 20 test problems and s1 10"),
    ):
        for path, result, change in zip(runs, results, changes, strict=True):
            (path / "result.json").write_text(json.dumps(result | change))
        with pytest.raises(ValueError, match=said):
            compared(tmp_path, *runs)
