"""Arms of variants, their runs by name, and what a study refuses before any is trained."""

from dataclasses import replace
from functools import partial

import pytest
from launchers import MadeUp
from recorded import SIZES

import layermem
from layermem.models.registry import list_variants
from layermem_bench.config.named_options import parse_options
from layermem_bench.config.run import Run
from layermem_bench.config.run_identity import run_id
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.study import boards
from layermem_bench.study.boards import arms_of_variants, board_of, parse_arms, study_of_variants
from layermem_bench.study.carrying_out import carry_out
from layermem_bench.study.definition import Arm, Board, Study
from layermem_bench.study.planning import counting_runs, trials
from layermem_bench.study.recipe import RECIPE, without_recipe

RUN = Run(preset="made-up", max_steps=40, model=SIZES)


def planned(board, seeds=(0,)):
    return counting_runs(board, seeds, {}, lambda name, run: name)


def test_arms_of_a_study_may_be_pairs():
    pair = "lime+hyper_connections"
    arms = parse_arms(f"plain,{pair}:streams=2")
    assert arms[f"{pair}:streams=2"] == (pair, ("streams=2",))


def test_arms_are_read():
    assert parse_arms("plain, lime:router=last:router_window=4") == {
        "plain": ("plain", ()),
        "lime:router=last:router_window=4": ("lime", ("router=last", "router_window=4")),
    }
    sources = "lime:router_sources=[[],[0]]"
    assert list(parse_arms(f"{sources},plain")) == [sources, "plain"]
    every = parse_arms("all,lime:router=average")
    assert list(every)[0] == "plain" and set(every) == {*list_variants(), "lime:router=average"}
    for names in ("all:router=last", "plain,lime:router_sources=[[0]", "plain,lame"):
        with pytest.raises(ValueError, match=r"'all'|router_sources|'lame'"):
            parse_arms(names)


def saved_llama(folder):
    model = layermem.build("plain", **SIZES.sizes() | {"vocab_size": 257, "num_hidden_layers": 4})
    model.save_pretrained(folder / "llama")
    load_tokenizer("bytes").save_pretrained(folder / "llama")
    return folder / "llama"


def test_arms_that_are_one_run_are_refused(tmp_path):
    halved = replace(RUN, model=replace(SIZES, options=("storage=2",)))
    with pytest.raises(ValueError, match=r"lime_half and lime_half:storage=2 are the same .*=2"):
        board_of(halved, "lime_half,lime_half:storage=2")
    with pytest.raises(ValueError, match="recipe and .* are the same run: name one"):
        board_of(RUN, f"recipe,lime:{':'.join(f'{k}={v}' for k, v in RECIPE.items())}")
    with pytest.raises(ValueError, match="cla and cla:sharing=2 are the same run: name one"):
        board_of(RUN, "plain,cla,cla:sharing=2")
    # A conversion has other defaults.
    llama = replace(RUN, model=replace(SIZES, pretrained=str(saved_llama(tmp_path))))
    assert len(board_of(llama, "plain,lime,lime:router_init=paper").arms) == 3
    with pytest.raises(ValueError, match="are the same run: name one"):
        board_of(llama, "plain,lime,lime:router_init=identity")


@pytest.mark.parametrize("arm", ["cla", "yoco", "fused_kv", "lime_half"])
def test_an_arm_without_the_projections_of_the_pretrained_model_is_refused(arm, tmp_path):
    """It would be the plain decoder by another name."""
    llama = replace(RUN, model=replace(SIZES, pretrained=str(saved_llama(tmp_path))))
    with pytest.raises(ValueError, match=f"^{arm}: .* lack a key or value projection"):
        board_of(llama, f"plain,{arm}")


def test_a_pretrained_model_has_no_other_parameters(tmp_path):
    llama = replace(RUN, model=replace(SIZES, pretrained=str(saved_llama(tmp_path))))
    study = study_of_variants([board_of(llama, "plain,mudd")], (0,), ("parameters",))
    with pytest.raises(ValueError, match="leave --conditions parameters out"):
        carry_out(study, tmp_path / "out", launcher=MadeUp())


def test_an_arm_with_a_long_list_has_a_folder_name_that_fits():
    of_layers = [list(range(layer)) for layer in range(32)]
    other = [*of_layers[:-1], list(range(30))]
    run = replace(RUN, model=replace(SIZES, num_hidden_layers=32))
    arms = [f"lime:router_sources={lists}" for lists in (of_layers, other)]
    names = list(planned(board_of(run, ",".join(["plain", *arms])), seeds=(0, 12345)))
    folders = [name.rpartition("/")[2] for name in names]
    assert len(set(folders)) == 6 and max(map(len, folders)) < 200
    assert folders[0] == "plain-s0"


def test_the_recipe_has_a_name_of_its_own():
    written_out = tuple(f"{name}={value}" for name, value in RECIPE.items())
    assert parse_options(written_out) == dict(layermem.RECIPE)
    pair = (*written_out[:2], "router_grain=pair")
    assert parse_arms("recipe,recipe_half:storage=2,recipe:router_grain=pair,recipe+mudd") == {
        "recipe": ("lime", written_out),
        "recipe_half:storage=2": ("lime_half", (*written_out, "storage=2")),
        "recipe:router_grain=pair": ("lime", pair),
        "recipe+mudd": ("lime+mudd", written_out),
    }
    # The runs are those of the arm that is written out.
    long = ":".join(("lime_half", *written_out, "storage=2"))
    short, others = (
        [arm.change(RUN) for arm in arms_of_variants(arm, RUN)]
        for arm in ("recipe_half:storage=2", long)
    )
    assert list(map(run_id, short)) == list(map(run_id, others))
    for arm in ("lime", "lime:router_grain=layer", "recipe", "recipe+mudd", "recipe_half"):
        variant, options = parse_arms(arm)[arm]
        assert without_recipe(variant, *options) == tuple(arm.split(":"))


def test_a_variant_of_the_name_of_the_recipe_is_refused(monkeypatch):
    monkeypatch.setattr(boards, "list_variants", lambda: ["plain", "lime", "recipe"])
    with pytest.raises(ValueError, match="a plugin's variant is called recipe"):
        parse_arms("plain,recipe")


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ("lime:routr=last", "LimeConfig has no field 'routr'; did you mean router?"),
        ("lime:router=lst", "lime:router=lst: .*, got lst"),
        ("lime:router_window=4", "lime:router_window=4: router_window is for"),
        ("lime:router_sources=[[]]", "router_sources"),
        ("lime:hidden_size=8", "model.options name hidden_size, which .*: --model.hidden-size"),
        ("plain:dtype=bfloat16", "dtype=bfloat16 .*--compute.precision"),
        ("lime:router", "NAME=VALUE each, got 'router'"),
    ],
)
def test_an_arm_of_wrong_options_is_refused(arm, message):
    with pytest.raises((TypeError, ValueError), match=message):
        board_of(RUN, f"plain,{arm}")


def test_a_rate_of_routers_is_that_of_the_arms_that_have_some():
    base = replace(RUN, optim=replace(RUN.optim, router_lr=0.5))
    arms = arms_of_variants("plain,lime,lime:router=average,mudd", base)
    rates = {arm.name: arm.change(base).optim.router_lr for arm in arms}
    assert rates == {"plain": None, "lime": 0.5, "lime:router=average": None, "mudd": 0.5}
    with pytest.raises(ValueError, match=r"^optim\.router_lr=0\.5 has no effect: plain"):
        arms_of_variants("plain,value_residual", base)


def test_an_arm_has_its_options_and_nothing_else():
    options = ("router_init=identity",)
    base = replace(RUN, model=replace(SIZES, options=options))
    (arm,) = arms_of_variants(["lime:router=last:router_window=1"], base)
    model = replace(base.model, options=(*options, "router=last", "router_window=1"))
    assert arm.change(base) == replace(base, variant="lime", model=model)


def test_runs_are_named_after_what_they_are():
    board = board_of(RUN, "plain,lime:router_init=identity", (1e-3, 1e-2), (0.0, 0.1))
    names = list(trials(board))
    assert len(names) == 8 and names[0] == "made-up/rates/plain-lr0.001-wd0-s1000"
    assert "made-up/rates/lime-router_init=identity-lr0.01-wd0.1-s1000" in names
    assert list(planned(board, (0, 3))) == [
        "made-up/plain-s0",
        "made-up/lime-router_init=identity-s0",
        "made-up/plain-s3",
        "made-up/lime-router_init=identity-s3",
    ]


def test_no_run_stands_for_another():
    for rates in ((0.01, 0.01), (0.01, 0.01000000001)):
        with pytest.raises(ValueError, match=r"0.01, 0.01"):
            board_of(RUN, "plain", rates)
    with pytest.raises(ValueError, match=r"0.1, 0.1"):
        board_of(RUN, "plain", (0.01,), (0.1, 0.1))
    board = board_of(RUN, "lime:rms_norm_eps=1e-5,lime:rms_norm_eps=1e+5")
    with pytest.raises(ValueError, match="lime-rms_norm_eps=1e-5-s0"):
        planned(board)


def test_rates_must_be_numbers_that_train():
    for rates in ((0.0,), (-1.0,), (float("nan"),)):
        with pytest.raises(ValueError, match="rates"):
            board_of(RUN, "plain", rates)
    with pytest.raises(ValueError, match="0.01, 0.01"):
        replace(board_of(RUN, "plain"), arms=(Arm(name="a", change=id, rates=(0.01, 0.01)),))
    with pytest.raises(ValueError, match="-1"):
        Arm(name="a", change=id, rates=(-1.0,))
    with pytest.raises(ValueError, match="decays"):
        board_of(RUN, "plain", (0.1,), (-0.1,))
    # Decays alone would be tried with no rate.
    with pytest.raises(ValueError, match="--rates"):
        board_of(RUN, "plain", (), (0.1,))


def test_a_study_that_would_compare_wrongly_is_refused(tmp_path):
    board, made_up = board_of(RUN, "plain,lime"), MadeUp()
    make = partial(study_of_variants, [board], conditions=("tokens",))
    for changes, named in (
        ({"seeds": (999, 1000)}, "1000"),
        ({"seeds": ()}, "none"),
        ({"seeds": (1, 1)}, r"\(1, 1\)"),
        ({"seeds": (1,), "conditions": ()}, "none"),
        ({"seeds": (1,), "conditions": ("tokens", "hours")}, "hours"),
    ):
        with pytest.raises(ValueError, match=named):
            carry_out(make(**changes), tmp_path, launcher=made_up)
    with pytest.raises(ValueError, match="made-up, made-up"):
        study_of_variants([board, board], (0,), ("tokens",))
    for arms in ((), (board.arms[0], board.arms[0])):
        with pytest.raises(ValueError, match="arms must be given and differ"):
            replace(board, arms=arms)
    assert not made_up.begun and not any(tmp_path.iterdir())


def test_a_board_that_starts_from_another_is_trained_after_it(tmp_path):
    """With what the arm of the same name and seed came to there."""

    class Saved(MadeUp):
        def train(self, run, folder):
            code = super().train(run, folder)
            if not code:
                load_tokenizer("bytes").save_pretrained(folder.final)
            return code

    made_up = Saved()
    first = board_of(RUN, "plain,lime", (0.1, 0.01), name="before")
    after = replace(board_of(RUN, "plain,lime", name="after"), starts_from=first)
    study = Study(name="two", title="Two stages", boards=(after,), seeds=(0, 1))
    made_up.does = lambda run: "diverges" if run.optim.lr == 0.1 else "ends"
    result, failure = carry_out(study, tmp_path, launcher=made_up)
    assert failure is None and [board.name for board in result.boards] == ["before", "after"]
    starts = {run.id: run.model.pretrained for run in made_up.runs}
    of_after = {run.name: starts[run.run_id] for run in result.runs if run.board == "after"}
    assert of_after == {
        f"after/{arm}-s{seed}": str(tmp_path / "before" / f"{arm}-lr0.01-s{seed}" / "final")
        for arm in ("plain", "lime")
        for seed in (0, 1)
    }
    # An arm that is lost there has nothing to start from here.
    made_up = Saved(does=lambda run: "diverges" if run.variant == "lime" else "ends")
    result, _ = carry_out(study, tmp_path / "lost", launcher=made_up)
    assert {run.arm for run in result.runs if run.board == "after"} == {"plain"}
    lost = result.boards[1].conditions[0].arms[1]
    assert "diverged" in lost.note and lost.parameters is None


def test_a_board_makes_what_its_runs_need_first(tmp_path):
    def prepare():
        raise ValueError("there is no text")

    board = Board(
        name="b",
        base=RUN,
        arms=(Arm(name="plain", change=lambda run: replace(run, variant="plain")),),
        prepare=prepare,
    )
    made_up = MadeUp()
    with pytest.raises(ValueError, match="there is no text"):
        carry_out(study_of_variants([board], (0,), ("tokens",)), tmp_path, launcher=made_up)
    assert not made_up.begun
