"""Arms of variants, boards by their names, and what a study refuses before any run is trained."""

from dataclasses import replace

import pytest
from launchers import MadeUp
from recorded import SIZES

import layermem
from layermem.models.registry import list_variants
from layermem_bench.config.named import parse_options
from layermem_bench.config.run import Labels, Run
from layermem_bench.presets import get_preset
from layermem_bench.studies.boards import (
    RECIPE,
    as_named_arm,
    board_of,
    open_boards,
    parse_arms,
    study_of_variants,
)
from layermem_bench.studies.carrying_out import carry_out
from layermem_bench.studies.planning import counting_runs, plain_parameters, trials
from layermem_bench.text.tokenizers import load_tokenizer

RUN = Run(preset="made-up", max_steps=40, model=SIZES)


def test_arms_are_read():
    sources, pair = "lime:router_sources=[[],[0]]", "lime+hyper_connections:streams=2"
    assert parse_arms(f"plain, lime:router=last:router_window=4,{sources},{pair}") == {
        "plain": ("plain", ()),
        "lime:router=last:router_window=4": ("lime", ("router=last", "router_window=4")),
        sources: ("lime", ("router_sources=[[],[0]]",)),
        pair: ("lime+hyper_connections", ("streams=2",)),
    }
    every = parse_arms("all,lime:router=average")
    assert list(every)[0] == "plain" and set(every) == {*list_variants(), "lime:router=average"}


def test_the_recipe_has_a_name_of_its_own():
    assert parse_options(RECIPE) == dict(layermem.RECIPE)
    assert parse_arms("recipe,recipe_half:storage=2,recipe:router_grain=pair,recipe+mudd") == {
        "recipe": ("lime", RECIPE),
        "recipe_half:storage=2": ("lime_half", (*RECIPE, "storage=2")),
        "recipe:router_grain=pair": ("lime", (*RECIPE[:2], "router_grain=pair")),
        "recipe+mudd": ("lime+mudd", RECIPE),
    }
    # The runs are those of the arm that is written out, and a run says what was typed.
    long = ":".join(("lime_half", *RECIPE, "storage=2"))
    short = as_named_arm(replace(RUN, variant="recipe_half:storage=2"))
    assert short.id == as_named_arm(replace(RUN, variant=long)).id
    assert short.labels == Labels(arm="recipe_half:storage=2")
    assert as_named_arm(short) == short


@pytest.mark.parametrize(
    ("arms", "named"),
    [
        ("plain,lame", "'lame'"),
        ("plain,lime:router_sources=[[0]", "router_sources"),
        ("lime:routr=last", "'routr'"),
        ("lime:router=lst", "lst"),
        ("lime:hidden_size=8", "hidden_size"),
        ("lime:router", "'router'"),
    ],
)
def test_arms_that_cannot_be_are_refused(arms, named):
    with pytest.raises((TypeError, ValueError), match=named):
        board_of(RUN, arms)


@pytest.mark.parametrize("arm", ["cla", "lime_half"])
def test_an_arm_without_the_projections_of_the_pretrained_model_is_refused(arm, tmp_path):
    """It would be the plain decoder by another name."""
    sizes = SIZES.sizes() | {"vocab_size": 257, "num_hidden_layers": 4}
    layermem.build("plain", **sizes).save_pretrained(tmp_path)
    load_tokenizer("bytes").save_pretrained(tmp_path)
    llama = replace(RUN, model=replace(SIZES, pretrained=str(tmp_path)))
    with pytest.raises(ValueError, match=f"^{arm}: "):
        board_of(llama, f"plain,{arm}")
    # A model that has its sizes has no others.
    study = study_of_variants([board_of(llama, "plain,mudd")], (0,), ("parameters",))
    with pytest.raises(ValueError, match="--conditions parameters"):
        carry_out(study, tmp_path / "out", launcher=MadeUp())


def test_a_rate_of_routers_is_that_of_the_arms_that_have_some():
    base = replace(RUN, optim=replace(RUN.optim, router_lr=0.5))
    arms = board_of(base, "plain,lime,lime:router=average,mudd").arms
    rates = {arm.name: arm.change(base).optim.router_lr for arm in arms}
    assert rates == {"plain": None, "lime": 0.5, "lime:router=average": None, "mudd": 0.5}


def test_runs_are_named_and_labelled_after_what_they_are():
    board = board_of(RUN, "plain,lime:router_init=identity", (1e-3, 1e-2))
    plan = trials(board)
    assert len(plan) == 4 and list(plan)[0] == "made-up/rates/plain-lr0.001-s1000"
    tried = plan["made-up/rates/lime-router_init=identity-lr0.01-s1000"]
    assert tried.labels == Labels(board="made-up", arm="lime:router_init=identity")
    assert (tried.variant, tried.model.options) == ("lime", ("router_init=identity",))
    assert replace(tried, labels=Labels()).id == tried.id
    assert list(counting_runs(board, (0, 3), {}, lambda name, run: name)) == [
        *("made-up/plain-s0", "made-up/lime-router_init=identity-s0"),
        *("made-up/plain-s3", "made-up/lime-router_init=identity-s3"),
    ]
    # No run stands for another; a rate that is named twice is one.
    assert trials(board_of(RUN, "plain", (0.01, 0.01))) == {}
    with pytest.raises(ValueError, match="plain-lr0.01-s1000"):
        trials(board_of(RUN, "plain", (0.01, 0.01000000001)))


def test_boards_and_studies_that_cannot_be_are_refused():
    board = board_of(RUN, "plain,lime")
    for seeds in ((999, 1000), ()):
        with pytest.raises(ValueError):
            study_of_variants([board], seeds, ("tokens",))


def test_a_shape_has_the_first_ones_parameters():
    opened = open_boards(("tiny-lm@16x64", "tiny-lm@64x32", "tiny-lm", "mqar"), "plain")
    wide, deep, preset, mqar = (board.base for board in opened)
    shapes = [(board.name, board.shape) for board in opened]
    assert shapes[:2] == [("tiny-lm-16x64", "16x64"), ("tiny-lm-64x32", "64x32")]
    assert shapes[2:] == [("tiny-lm", ""), ("tiny-mqar", "")] and mqar.preset == "tiny-mqar"
    # Heads keep their width, 8.
    sizes = deep.model.num_hidden_layers, deep.model.hidden_size, deep.model.num_attention_heads
    assert sizes == (64, 32, 4)
    assert wide.model.intermediate_size == 256 and deep.model.intermediate_size != 128
    assert abs(plain_parameters(deep) / plain_parameters(wide) - 1) <= 0.005
    assert preset == get_preset("tiny-lm")
    for name in ("tiny-lm@64", "tiny-lm@4x20", "aet-44"):
        with pytest.raises(ValueError, match=name.rpartition("x")[2]):
            open_boards([name], "plain")
