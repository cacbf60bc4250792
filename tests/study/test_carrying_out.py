"""A study is carried out: what is trained under each condition, what fails, what is added."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from launchers import MadeUp
from recorded import SIZES, record

from layermem_bench.report import study as report
from layermem_bench.report.study_tables import shapes_tables
from layermem_bench.results.comparing import lines_of
from layermem_bench.results.files import read_result
from layermem_bench.results.study import LOSS, RIGHT_ANSWERS, Claim, StudyResult
from layermem_bench.study import boards as study_boards
from layermem_bench.study import steps
from layermem_bench.study.boards import board_of, open_boards, study_of_variants
from layermem_bench.study.carrying_out import carry_out, result_folder
from layermem_bench.study.definition import CHOOSING_SEED
from layermem_bench.study.gathering import STUDIES
from layermem_bench.study.run_folders import compare_runs

pytestmark = pytest.mark.usefixtures("undrawn")

AT_TOKENS = ("tokens",)


def table(result, condition="tokens", board=0, metric=LOSS):
    """Return the lines of an arm by its name."""
    of = result.boards[board]
    (at,) = (each for each in of.conditions if each.name == condition)
    return {line.arm: line for line in lines_of(result, of, at, metric)}


def arms(result, condition, board=0):
    (at,) = (each for each in result.boards[board].conditions if each.name == condition)
    return {arm.name: arm for arm in at.arms}


def test_arms_meet_under_each_condition(tmp_path, made_up, study):
    result, failure = carry_out(study(), tmp_path, command="the command", launcher=made_up)
    assert failure is None and result.command == "the command"
    # Two rates of three arms; nine at equal tokens; LIMe's steps take longer; both are larger.
    assert len(made_up.begun) == 6 + 9 + 3 + 6
    assert result.boards[0].steps.ratios == {"plain": 1, "lime": 1.25, "hyper_connections": 0.9}
    assert result.boards[0].memory.peaks["lime"] == 15_000_000
    tokens, time, parameters = (arms(result, c) for c in ("tokens", "time", "parameters"))
    assert {name: arm.steps for name, arm in tokens.items()} == dict.fromkeys(tokens, 40)
    # One that is quicker has more steps.
    assert [arm.steps for arm in time.values()] == [40, 32, 44]
    assert {arm.rate for arm in tokens.values()} == {1e-2}
    plain = tokens["plain"].parameters
    for arm in ("lime", "hyper_connections"):
        assert tokens[arm].parameters > plain
        assert abs(parameters[arm].parameters / plain - 1) <= 0.005
    assert parameters["hyper_connections"].width_of_mlp < SIZES.intermediate_size
    for condition in ("tokens", "time", "parameters"):
        best, *others = table(result, condition).values()
        assert (best.arm, best.rank) == ("lime", 1) and best.p < 0.05
        assert {other.rank for other in others} == {2}
    hyper = table(result)["hyper_connections"]
    assert hyper.p > 0.05 and hyper.p_to_best < 0.05
    # What counts under several conditions is one run.
    (shared,) = (run for run in result.runs if run.name == "board/plain-lr0.01-s0")
    assert shared.conditions == ("tokens", "time", "parameters")
    assert read_result(StudyResult, tmp_path / "studies" / "board") == result
    tables = {t.header[1]: t for s in report.build(result).sections for t in s.tables if t.header}
    for shown in (tables["board, equal tokens"], tables["board, equal training time"]):
        assert shown.header[-2:] == ["time", "memory"]
        prices = {row[1]: row[-2:] for row in shown.texts()}
        assert prices == {
            "plain": ["1.00", "1.00"],
            "lime": ["1.25", "1.50"],
            "hyper_connections": ["0.90", ""],
        }
        assert shown.texts()[0][:2] == ["1", "lime"] and "best mean" in shown.texts()[0]
        assert "within noise" in " ".join(shown.texts()[1] + shown.texts()[2])
    # At equal parameters models are others than those that were measured.
    assert "time" not in tables["board, equal parameters"].header
    assert "may lie beyond those tried" in tables["0.001"].caption
    # Nothing is done twice.
    count = len(made_up.begun)
    assert carry_out(study(), tmp_path, command="the command", launcher=made_up)[0] == result
    assert len(made_up.begun) == count and len(made_up.timed) == 1
    assert {run.seed for run in made_up.runs} == {0, 1, 2, CHOOSING_SEED}


def test_runs_that_lie_elsewhere_are_used(tmp_path, made_up, study):
    first, _ = carry_out(study(), tmp_path / "first", launcher=made_up)
    made_up.begun.clear()
    same, _ = carry_out(study(), tmp_path / "new", [tmp_path], launcher=made_up)
    assert not made_up.begun
    assert {run.folder for run in same.runs} == {run.folder for run in first.runs}
    assert table(same) == table(first)


def test_shapes_of_one_preset_are_ranked_together(tmp_path, made_up, study, monkeypatch):
    base = study().boards[0].base
    monkeypatch.setattr(study_boards, "get_preset", lambda name: replace(base, preset=name))
    boards = open_boards(["board@4x32", "board@8x16", "other"], "plain,lime", (1e-2,))
    asked = study_of_variants(boards, range(3), ("parameters",))
    result, _ = carry_out(asked, tmp_path, launcher=made_up)
    ((_, together, _),) = shapes_tables(result)
    assert {x.arm for x in together[:2]} == {"lime, 4x32", "lime, 8x16"}
    assert {x.arm for x in together} == {
        *("plain, 4x32", "plain, 8x16", "lime, 4x32", "lime, 8x16")
    }
    assert all(len(line.by_seed) == 3 for line in together)
    counts = [arm.parameters for at in (0, 1) for arm in arms(result, "parameters", at).values()]
    assert max(counts) / min(counts) < 1.01
    assert "Wide or deep" in [section.title for section in report.build(result).sections]


def test_shapes_pay_for_the_looks_of_any_of_them(tmp_path, made_up, study, monkeypatch):
    base = study().boards[0].base
    monkeypatch.setattr(study_boards, "get_preset", lambda name: replace(base, preset=name))
    boards = open_boards(["board@4x32", "board@8x16"], "plain,lime", (1e-2,))
    asked = study_of_variants(boards, range(3), ("parameters",))
    result, _ = carry_out(asked, tmp_path, launcher=made_up)
    first, second = result.boards
    (condition,) = second.conditions
    seen_twice = replace(condition, looks=((0, 1), (0, 1, 2)))
    again = replace(result, boards=(first, replace(second, conditions=(seen_twice,))))
    for (once, of_once, _), (twice, of_twice, _) in zip(
        shapes_tables(result), shapes_tables(again), strict=True
    ):
        assert "times" not in once.caption and "4 times" in twice.caption
        for ours, theirs in zip(of_twice, of_once, strict=True):
            assert ours.p == (None if theirs.p is None else pytest.approx(min(1, 4 * theirs.p)))


def test_boards_whose_text_changed_in_between_are_refused(tmp_path, made_up, study, monkeypatch):
    base = study().boards[0].base
    monkeypatch.setattr(study_boards, "get_preset", lambda name: replace(base, preset=name))
    boards = open_boards(["board@4x32", "board@8x16"], "plain,lime", (1e-2,))
    asked = study_of_variants(boards, range(3), AT_TOKENS)
    usual = made_up.train

    def train(run, folder):
        code = usual(run, folder)
        config = yaml.safe_load(folder.config.read_text())
        config["about"]["data"] = f"text of {run.model.num_hidden_layers}"
        folder.config.write_text(yaml.safe_dump(config))
        return code

    monkeypatch.setattr(made_up, "train", train)
    with pytest.raises(ValueError, match=r"8x16.* and .*4x32|4x32.* and .*8x16.*on different data"):
        carry_out(asked, tmp_path, launcher=made_up)


def test_results_of_other_boards_stay(tmp_path, made_up, study):
    one, _ = carry_out(study(conditions=AT_TOKENS), tmp_path, launcher=made_up)
    carry_out(study("other", conditions=AT_TOKENS), tmp_path, launcher=made_up)
    made_up.begun.clear()
    both, _ = carry_out(study("board", "other", conditions=AT_TOKENS), tmp_path, launcher=made_up)
    assert not made_up.begun and both.boards[0] == one.boards[0]
    assert read_result(StudyResult, tmp_path / "studies" / "board") == one
    assert read_result(StudyResult, tmp_path / "studies" / "board+other") == both
    # Not after hours of training.
    many = study(*(f"a-board-with-a-long-name-{number}" for number in range(10)))
    with pytest.raises(ValueError, match=r"\d+ bytes"):
        carry_out(many, tmp_path, launcher=made_up)
    assert not made_up.begun


def test_an_interrupted_study_goes_on(tmp_path, made_up, study):
    class Interrupted(MadeUp):
        def train(self, run, folder):
            if run.max_steps == 32 and run.seed == 1:
                raise KeyboardInterrupt
            return super().train(run, folder)

    interrupted = Interrupted(made_up.loss)
    with pytest.raises(KeyboardInterrupt):
        carry_out(study(), tmp_path, launcher=interrupted)
    result, failure = carry_out(study(), tmp_path, launcher=made_up)
    assert failure is None and all(run.state == "ended" for run in result.runs)
    # The run that was interrupted is begun again, those before it are not.
    assert made_up.begun[0] == interrupted.begun[-1] == "board/time/lime-lr0.01-s1"
    assert not {*made_up.begun} & {*interrupted.begun[:-1]}


def test_a_failed_run_is_in_no_mean_and_named(tmp_path, made_up, study):
    made_up.does = lambda run: "" if (run.variant, run.seed) == ("lime", 1) else "ends"
    result, failure = carry_out(study(), tmp_path, launcher=made_up)
    assert "2 of 18 runs failed" in failure
    *_, last = table(result).values()
    assert (last.arm, last.rank, sorted(last.by_seed)) == ("lime", None, [0, 2])
    assert last.missing == (1,) and last.mean.count == 2
    assert [run.state for run in result.runs].count("failed") == 2
    (note,) = result.notes
    assert "board/lime-lr0.01-s1" in note
    shown = report.tables(result)[0]
    assert any("failed: seed 1" in cell for cell in shown.texts()[-1])
    # Tried again it ends.
    made_up.does, count = lambda run: "ends", len(made_up.begun)
    result, failure = carry_out(study(), tmp_path, launcher=made_up)
    assert failure is None and not result.notes and len(made_up.begun) == count + 2


def test_a_seed_that_diverged_is_no_failure(tmp_path, made_up, study):
    made_up.does = lambda run: "diverges" if run.seed == 1 else "ends"
    result, failure = carry_out(study(conditions=AT_TOKENS), tmp_path, launcher=made_up)
    assert failure is None and "Diverged" in result.notes[0]
    assert [run.state for run in result.runs].count("diverged") == 3
    assert all(line.missing == (1,) and line.rank is None for line in table(result).values())
    count = len(made_up.begun)
    carry_out(study(conditions=AT_TOKENS), tmp_path, launcher=made_up)
    assert len(made_up.begun) == count


def test_an_arm_that_diverged_at_every_rate_has_no_rank(tmp_path, made_up, study):
    made_up.does = lambda run: "diverges" if run.variant == "lime" else "ends"
    result, failure = carry_out(study("board", "other"), tmp_path, launcher=made_up)
    assert failure is None
    for board in (0, 1):
        for condition in ("tokens", "time", "parameters"):
            *others, last = table(result, condition, board).values()
            assert {other.rank for other in others} == {1}
            assert (last.arm, last.rank, last.by_seed, last.mean) == ("lime", None, {}, None)
            assert "diverged" in arms(result, condition, board)["lime"].note
            assert arms(result, condition, board)["lime"].rate is None
    assert [each.chosen for each in result.boards[0].tried] == [1e-2, None, 1e-2]
    # Nothing of it was trained but the runs that tried rates.
    assert {run.seed for run in made_up.runs if run.variant == "lime"} == {CHOOSING_SEED}
    assert not any("lime" in run.name for run in result.runs if "/rates/" not in run.name)
    made_up.does = lambda run: "diverges"
    with pytest.raises(RuntimeError, match="every arm diverged at every learning rate on board"):
        carry_out(study(), tmp_path / "all lost", launcher=made_up)


def test_arms_are_added(tmp_path, made_up, study, monkeypatch):
    """What was timed stays as it was, and its runs with it."""
    before, _ = carry_out(study(variants="plain,lime"), tmp_path, launcher=made_up)
    ids = {run.id for run in made_up.runs}
    made_up.runs.clear()
    timed = []
    slower = {"plain": [2.0] * 3, "lime": [9.0] * 3, "hyper_connections": [5.0, 4.0, 6.0]}

    def time_interleaved(steps, *_, **__):
        timed.append(list(steps))
        return {arm: slower[arm] for arm in steps}

    monkeypatch.setattr(steps, "time_interleaved", time_interleaved)
    result, _ = carry_out(study(), tmp_path, launcher=made_up)
    assert timed == [["plain", "hyper_connections"]]
    measured = result.boards[0].steps
    assert measured.ratios == {"plain": 1, "lime": 1.25, "hyper_connections": 2.5}
    assert measured.seconds["plain"] == before.boards[0].steps.seconds["plain"] == 2
    assert not ids & {run.id for run in made_up.runs}
    assert {run.variant for run in made_up.runs} == {"hyper_connections"}
    assert {run.max_steps for run in made_up.runs} == {40, 16}
    assert carry_out(study(), tmp_path, launcher=made_up)[0] == result and len(timed) == 1


def test_steps_that_do_not_compare_are_refused(tmp_path, made_up, study):
    few = study(variants="plain,lime")
    carry_out(few, tmp_path, launcher=made_up)
    count = len(made_up.begun)
    # Ratios to the plain decoder say nothing of those to LIMe; said before anything is trained.
    with pytest.raises(ValueError, match=r"another first arm \(plain, and this is lime\)"):
        carry_out(study(variants="lime,plain", rates=(5e-3,)), tmp_path, launcher=made_up)
    assert len(made_up.begun) == count
    file = tmp_path / "board" / "steps.json"
    time = re.escape(str(tmp_path / "board" / "time"))
    measured = json.loads(file.read_text())
    for text, asked, said in (
        (file.read_text()[:-20], few, rf"{file} is not what .*; delete it, and {time} with it"),
        ({"base": "0" * 12}, few, rf"another model, data or sizes.*delete it, and {time}"),
        # Arms of two machines would stand side by side.
        ({"machine": "an abacus"}, study(), r"another machine \(an abacus, and this is "),
    ):
        file.write_text(text if isinstance(text, str) else json.dumps({**measured, **text}))
        with pytest.raises(ValueError, match=said):
            carry_out(asked, tmp_path, launcher=made_up)
    # Without a new arm nothing is measured here.
    carry_out(few, tmp_path, launcher=made_up)
    assert len(made_up.begun) == count


def test_an_arm_that_has_no_equal_parameters_is_refused_first(tmp_path, made_up, study):
    """Not after hours of training on the boards before."""
    small = replace(SIZES, hidden_size=4, intermediate_size=1, num_hidden_layers=1)
    asked = study(model=small)
    asked = replace(asked, boards=(*study("before").boards, *asked.boards))
    with pytest.raises(ValueError, match=r"hyper_connections has \d+ parameters on board at 1x4"):
        carry_out(asked, tmp_path, launcher=made_up)
    assert not made_up.begun


def test_more_seeds_are_another_look(tmp_path, made_up, study):
    def asked(**changes):
        return study(variants="plain,lime", conditions=("tokens", "time"), **changes)

    def looks(result):
        return {condition.looks for condition in result.boards[0].conditions}

    three, _ = carry_out(asked(), tmp_path, launcher=made_up)
    again, _ = carry_out(asked(), tmp_path, launcher=made_up)
    assert again == three and looks(three) == {((0, 1, 2),)}
    five, _ = carry_out(asked(seeds=5), tmp_path, launcher=made_up)
    assert looks(five) == {((0, 1, 2), (0, 1, 2, 3, 4))}
    shutil.rmtree(tmp_path / STUDIES)
    fresh, _ = carry_out(asked(seeds=5), tmp_path / "fresh", [tmp_path], launcher=made_up)
    p, of_fresh = table(five)["lime"].p, table(fresh)["lime"].p
    assert p == pytest.approx(4 * of_fresh) and of_fresh > 0
    assert "4 times" in report.tables(five)[0].caption
    assert "times" not in report.tables(fresh)[0].caption
    # Other learning rates make other runs, which were not looked at.
    other, _ = carry_out(asked(rates=(3e-3,)), tmp_path, launcher=made_up)
    assert looks(other) == {((0, 1, 2),)}


def test_looks_of_a_study_count_wherever_its_runs_are_read(tmp_path, made_up, study, monkeypatch):
    def asked(variants="plain,lime", seeds=5):
        return study(variants=variants, conditions=AT_TOKENS, seeds=seeds)

    def looks(result):
        (board,) = result.boards
        return board.conditions[0].looks

    here, both = tmp_path / "here", ((0, 1, 2), (0, 1, 2, 3, 4))
    carry_out(asked(seeds=3), here, launcher=made_up)
    carry_out(asked(), here, launcher=made_up)
    elsewhere, _ = carry_out(asked(), tmp_path / "elsewhere", [here], launcher=made_up)
    assert looks(elsewhere) == both
    runs = sorted((here / "board").glob("*-s?"))
    assert len(runs) == 10
    assert looks(compare_runs(runs, tmp_path / "page")) == both
    # Again, beside what was written there.
    assert looks(compare_runs(runs, tmp_path / "page")) == both
    # By a link, and from the folder of a run.
    (tmp_path / "link").symlink_to(here / "board")
    assert looks(compare_runs([tmp_path / "link"], tmp_path / "of-link")) == both
    monkeypatch.chdir(runs[0])
    assert looks(compare_runs([Path("..")], tmp_path / "of-above")) == both
    # A study with claims pays for looks of one without.
    claims = (Claim(quantity=LOSS, arm="lime", direction="lower"),)
    claimed, _ = carry_out(replace(asked(), name="paper/x", claims=claims), here, launcher=made_up)
    assert claimed.looks == looks(claimed) == both
    # An arm that is new beside the plain decoder alone was not looked at before.
    new, _ = carry_out(asked("plain,hyper_connections"), tmp_path / "new", [here], launcher=made_up)
    assert looks(new) == both[1:]


def test_what_was_not_seen_is_no_look(tmp_path, made_up, study):
    """Seeds that were planned and failed, and fresh seeds with rates that were chosen before."""
    usual = made_up.does
    made_up.does = lambda run: "" if run.seed == 2 else usual(run)
    carry_out(study(variants="plain,lime", conditions=AT_TOKENS), tmp_path, launcher=made_up)
    ended = sorted((tmp_path / "board").glob("*-s[01]"))
    page = compare_runs(ended, tmp_path / "page")
    assert len(page.boards[0].conditions[0].looks) == 1
    fresh = replace(
        study(variants="plain,lime", conditions=AT_TOKENS), name="fresh", seeds=(10, 11, 12)
    )
    claims = (Claim(quantity=LOSS, arm="lime", direction="lower"),)
    result, _ = carry_out(replace(fresh, claims=claims), tmp_path, launcher=made_up)
    assert result.looks == ((10, 11, 12),)


def test_a_run_that_is_tried_again_is_no_further_look(tmp_path, made_up, study):
    asked = study(variants="plain,lime", conditions=AT_TOKENS)
    usual, failing = made_up.does, (("lime", 2),)
    made_up.does = lambda run: "" if (run.variant, run.seed) in failing else usual(run)
    result, failure = carry_out(asked, tmp_path, launcher=made_up)
    assert failure is not None and "lime" in failure
    failing = ()
    for _ in range(2):
        again, failure = carry_out(asked, tmp_path, launcher=made_up)
        assert failure is None
        assert again.boards[0].conditions[0].looks == ((0, 1, 2),)
    fresh, _ = carry_out(asked, tmp_path / "fresh", [tmp_path], launcher=made_up)
    assert table(again)["lime"].p == table(fresh)["lime"].p


def test_a_run_of_another_config_in_a_folder_is_no_result(tmp_path, made_up, study):
    asked = study(conditions=AT_TOKENS, rates=())
    carry_out(asked, tmp_path, launcher=made_up)
    count = len(made_up.begun)
    with pytest.raises(ValueError, match="max_steps was 40, is 80"):
        carry_out(study(conditions=AT_TOKENS, rates=(), max_steps=80), tmp_path, launcher=made_up)
    assert len(made_up.begun) == count


def test_a_run_on_a_task_that_lost_its_result_is_refused(tmp_path, study):
    task = board_of(study_boards.get_preset("tiny-aet-4"), "plain,lime", name="board")
    asked = study_of_variants([task], range(2), ("tokens",))
    made_up = MadeUp(right=lambda run: 0.5)
    result, _ = carry_out(asked, tmp_path, launcher=made_up)
    assert set(result.metrics) >= {LOSS, RIGHT_ANSWERS} and result.boards[0].metric == RIGHT_ANSWERS
    assert result.metrics[RIGHT_ANSWERS].chance == 0.1
    (tmp_path / "board" / "lime-s1" / "result.json").unlink()
    with pytest.raises(ValueError, match=r"lime-s1 has ended without a result.json"):
        carry_out(asked, tmp_path, launcher=made_up)


def test_runs_of_one_config_on_other_data_are_refused(tmp_path, study):
    asked = study(conditions=AT_TOKENS, rates=(), seeds=2, variants="plain,lime")
    for seed in (0, 1):
        for variant in ("plain", "lime"):
            run = replace(asked.boards[0].base, variant=variant, seed=seed)
            about = {"data": f"data {seed}"}
            record(tmp_path / "board" / f"{variant}-s{seed}", run=run, about=about)
    with pytest.raises(ValueError, match=r"on different data under one config \(data 0, data 1\)"):
        carry_out(asked, tmp_path, launcher=MadeUp())


def test_a_result_has_a_folder_of_its_own(tmp_path, study):
    assert result_folder(study("a", "b"), tmp_path) == tmp_path / "studies" / "a+b"
