"""A study is carried out: what is trained under each condition, what fails, what is added."""

import json
from dataclasses import replace

import pytest
from launchers import MadeUp
from recorded import SIZES, record

from layermem_bench.config.run import Compute, Data, Optim, Run
from layermem_bench.config.typed_dicts import read_result
from layermem_bench.run.folder import RunFolder
from layermem_bench.studies import boards as study_boards
from layermem_bench.studies.boards import board_of, questions_of, study_of_variants
from layermem_bench.studies.carrying_out import carry_out
from layermem_bench.studies.comparing import UNSAID, answers, judge, lines_of
from layermem_bench.studies.definition import CHOOSING_SEED, Study
from layermem_bench.studies.gathering import gather_runs
from layermem_bench.studies.records import RecordedRuns
from layermem_bench.studies.result import LOSS, RIGHT_ANSWERS, Claim, Row, StudyResult
from layermem_bench.text.tokenizers import load_tokenizer

pytestmark = pytest.mark.usefixtures("undrawn")

AT_TOKENS = ("tokens",)
ROWS = {"plain": (2.0, 2.1, 2.2, 2.0, 2.1), "lime": (1.0, 1.2, 1.1, 1.0, 1.1)}
RUN = Run(preset="made-up", max_steps=40, model=SIZES)


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
    # What counts under several conditions is one run, and says so.
    (shared,) = (run for run in result.runs if run.name == "board/plain-lr0.01-s0")
    assert shared.conditions == ("tokens", "time", "parameters")
    (config,) = (run for run in made_up.runs if run.id == shared.run_id)
    assert config.labels.conditions == shared.conditions
    assert read_result(StudyResult, tmp_path / "studies" / "board") == result
    # Nothing is done twice.
    count = len(made_up.begun)
    assert carry_out(study(), tmp_path, command="the command", launcher=made_up)[0] == result
    assert len(made_up.begun) == count and len(made_up.timed) == 1
    assert {run.seed for run in made_up.runs} == {0, 1, 2, CHOOSING_SEED}


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
    assert last.missing == (1,) and [run.state for run in result.runs].count("failed") == 2
    # Tried again it ends.
    made_up.does, count = lambda run: "ends", len(made_up.begun)
    result, failure = carry_out(study(), tmp_path, launcher=made_up)
    assert failure is None and len(made_up.begun) == count + 2


def test_an_arm_that_diverged_at_every_rate_has_no_rank(tmp_path, made_up, study):
    made_up.does = lambda run: (
        "diverges" if run.variant == "lime" or run.seed == 2 and run.variant != "plain" else "ends"
    )
    result, failure = carry_out(study(), tmp_path, launcher=made_up)
    assert failure is None
    for condition in ("tokens", "time", "parameters"):
        plain, last, hyper = table(result, condition).values()
        # A seed that diverged is no failure.
        assert (plain.rank, hyper.rank, hyper.missing) == (1, None, (2,))
        assert (last.arm, last.rank, last.by_seed, last.mean) == ("lime", None, {}, None)
        assert "diverged" in arms(result, condition)["lime"].note
        assert arms(result, condition)["lime"].rate is None
    assert [each.chosen for each in result.boards[0].tried] == [1e-2, None, 1e-2]
    # Nothing of it was trained but the runs that tried rates.
    assert {run.seed for run in made_up.runs if run.variant == "lime"} == {CHOOSING_SEED}
    made_up.does = lambda run: "diverges"
    with pytest.raises(RuntimeError, match="board"):
        carry_out(study(), tmp_path / "all lost", launcher=made_up)


LIME = ("lime below plain",)


def test_a_plan_that_changes_after_runs_have_ended_tests_nothing(tmp_path, made_up, study):
    def asked(seeds=range(3), *, variants="plain,lime", asks=(), out="out", **changes):
        made = study(variants=variants, conditions=AT_TOKENS, **changes)
        made = replace(made, seeds=tuple(seeds))
        questions = questions_of(asks, made, 0.01)
        result, _ = carry_out(replace(made, questions=questions), tmp_path / out, launcher=made_up)
        told = [each.answer for each in answers(result)] + [table(result)["lime"].p]
        assert all(each is None for each in told) == bool(result.untested)
        return result.untested

    both, identity = "plain,lime,hyper_connections", "lime:router_init=identity"
    for name, first, then, is_tested in (
        ("again", {}, {}, True),
        ("more seeds", {}, {"seeds": range(5)}, False),
        ("fewer seeds", {}, {"seeds": range(2)}, False),
        ("other seeds", {}, {"seeds": range(2, 5)}, False),
        ("new seeds", {}, {"seeds": range(3, 6)}, True),
        ("new runs", {}, {"seeds": range(5), "rates": (3e-3,)}, True),
        ("asked later", {}, {"asks": LIME}, False),
        ("asked otherwise", {"asks": LIME}, {"asks": ("lime above plain",)}, False),
        ("asked of more seeds", {"asks": LIME}, {"asks": LIME, "seeds": range(5)}, False),
        ("one arm more", {}, {"variants": both}, True),
        ("one arm less", {"variants": both}, {}, False),
        ("another arm", {"variants": both}, {"variants": f"plain,lime,{identity}"}, True),
    ):
        assert not asked(out=name, **first)
        assert bool(asked(out=name, **then)) != is_tested, name
        # To go back does not take it back.
        assert bool(asked(out=name, **then)) != is_tested


def test_a_plan_is_written_before_the_first_run_that_counts(tmp_path, made_up, study):
    made_up.does = lambda run: "" if run.variant == "lime" and run.seed < 1000 else "ends"
    few = study(variants="plain,lime", conditions=AT_TOKENS)
    carry_out(few, tmp_path, launcher=made_up)
    made_up.does = lambda run: "ends"
    more, _ = carry_out(replace(few, seeds=tuple(range(5))), tmp_path, launcher=made_up)
    assert more.untested
    claim = Claim(quantity=LOSS, arm="lime", direction="lower")
    rows = tuple(Row(metric=LOSS, arm=a, by_seed=dict(enumerate(v))) for a, v in ROWS.items())
    (judged,) = judge(replace(more, claims=(claim,), rows=rows))
    assert (judged.p, judged.verdict) == (None, UNSAID)


def test_nothing_is_tested_before_the_last_run_has_ended(tmp_path, made_up, study):
    made_up.does = lambda run: "" if (run.variant, run.seed) == ("lime", 2) else "ends"
    asked = study(variants="plain,lime,hyper_connections", conditions=AT_TOKENS)
    questions = questions_of(["lime below plain", "plain above lime"], asked, 0.01)
    result, _ = carry_out(replace(asked, questions=questions), tmp_path, launcher=made_up)
    assert {line.p for line in table(replace(result, questions=())).values()} == {None}
    assert [each.answer for each in answers(result)] == [None, None]
    made_up.does = lambda run: "ends"
    result, _ = carry_out(replace(asked, questions=questions), tmp_path, launcher=made_up)
    assert [each.answer for each in answers(result)] == ["yes", "yes"] and not result.untested
    # What was not asked is described.
    assert {line.p for line in table(result).values()} == {None}
    assert table(replace(result, questions=()))["hyper_connections"].p is not None


def test_a_recorded_run_says_of_every_condition_that_it_counts(tmp_path, made_up, study):
    for conditions in (AT_TOKENS, ("tokens", "parameters")):
        asked = study(variants="plain,lime", conditions=conditions)
        result, _ = carry_out(asked, tmp_path, launcher=made_up)
    report = gather_runs([tmp_path / "board"], tmp_path / "report")
    for condition in ("tokens", "parameters"):
        assert table(report, condition).keys() == table(result, condition).keys()


def test_a_board_that_starts_from_another_is_trained_after_it(tmp_path):
    """With what the arm of the same name and seed came to there."""

    class Saved(MadeUp):
        def train(self, run, folder):
            code = super().train(run, folder)
            if not code:
                load_tokenizer("bytes").save_pretrained(folder.final)
            return code

    made_up = Saved(does=lambda run: "diverges" if run.optim.lr == 0.1 else "ends")
    first = board_of(RUN, "plain,lime", (0.1, 0.01), name="before")
    after = replace(board_of(RUN, "plain,lime", name="after"), starts_from=first)
    study = Study(name="two", title="Two stages", boards=(after,), seeds=(0, 1))
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


def test_runs_that_cannot_be_compared_are_refused(tmp_path, study):
    asked = study(conditions=AT_TOKENS, rates=(), seeds=2, variants="plain,lime")
    other = study(conditions=AT_TOKENS, rates=(), seeds=2, variants="plain,lime", max_steps=80)
    (board,) = asked.boards
    for seed in (0, 1):
        for arm in board.arms:
            run = replace(arm.change(board.base), seed=seed)
            about = {"data": f"data {seed}"}
            record(tmp_path / "board" / f"{arm.name}-s{seed}", run=run, about=about)
    with pytest.raises(ValueError, match="data 0, data 1"):
        carry_out(asked, tmp_path, launcher=(made_up := MadeUp()))
    # A run of another config in a folder is no result.
    with pytest.raises(ValueError, match="max_steps was 40, is 80"):
        carry_out(other, tmp_path, launcher=made_up)
    assert not made_up.begun


def test_a_run_on_a_task_that_lost_its_result_is_refused(tmp_path):
    task = board_of(study_boards.get_preset("tiny-aet-4"), "plain,lime", name="board")
    asked = study_of_variants([task], range(2), ("tokens",))
    made_up = MadeUp(right=lambda run: 0.5)
    result, _ = carry_out(asked, tmp_path, launcher=made_up)
    assert set(result.metrics) >= {LOSS, RIGHT_ANSWERS} and result.boards[0].metric == RIGHT_ANSWERS
    assert result.metrics[RIGHT_ANSWERS].chance == 0.1
    (tmp_path / "board" / "lime-s1" / "result.json").unlink()
    with pytest.raises(ValueError, match=r"lime-s1 .*result.json"):
        carry_out(asked, tmp_path, launcher=made_up)


def test_a_run_is_found_however_it_was_carried_out(tmp_path, caplog):
    compute = Compute(micro_batch=2, compile=True, loss_chunk=0)
    run = replace(RUN, log_every=7, eval_every=5, data=Data(cache="elsewhere"), compute=compute)
    there = record(tmp_path / "runs" / "old" / "lime-s0", run=run)
    lost = record(tmp_path / "runs" / "lost", run=replace(RUN, seed=1), diverged=5)
    record(tmp_path / "runs" / "begun", run=replace(RUN, seed=2), ended=False)
    (tmp_path / "runs" / "damaged").mkdir()
    (tmp_path / "runs" / "damaged" / "config.yaml").write_text("max_steps: 1\nnew_field: 1\n")
    new = tmp_path / "runs" / "x"
    found = RecordedRuns(tmp_path / "runs")
    others = [replace(RUN, seed=seed) for seed in range(3)]
    assert [found.path_of("x", run) for run in others] == [there, lost, new]
    assert found.path_of("x", replace(RUN, optim=Optim(lr=0.5))) == new
    assert "damaged is left out" in caplog.text
    # A divergence of another run is no record; the plan's own folder comes first.
    path = RunFolder(lost).diverged
    path.write_text(json.dumps({**json.loads(path.read_text()), "run_id": "another"}))
    record(new, run=RUN)
    found = RecordedRuns(tmp_path / "runs")
    assert [found.path_of("x", run) for run in others[:2]] == [new, new]
