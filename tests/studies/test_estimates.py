"""What a study would train, without training or timing anything: before, in between, afterwards."""

import shutil
from dataclasses import replace

import pytest
from launchers import MadeUp
from recorded import record

from layermem_bench.config.run import HOST, Data, Host, Model, Run
from layermem_bench.studies.boards import study_of_variants
from layermem_bench.studies.carrying_out import carry_out
from layermem_bench.studies.definition import Arm, Board
from layermem_bench.studies.estimates import estimate, estimate_run

TOKENS = 40 * 32 * 256


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """No runs of this machine."""
    monkeypatch.chdir(tmp_path)


def test_what_is_still_to_come_is_counted(tmp_path, made_up, study):
    (before,) = estimate(study(), tmp_path)
    # Six that try rates; three seeds of three arms at equal tokens, and of those that a condition
    # changes: two at equal time, one at equal parameters.
    assert (before.board, before.trials, before.counting) == ("board", 6, 18)
    assert (before.recorded, before.hours) == (0, None)
    assert before.tokens == 24 * TOKENS
    assert before.flops > before.tokens
    assert not made_up.begun and not made_up.timed and not any(tmp_path.iterdir())
    # One that failed is to come; with the rates chosen it is known which runs of three are one.
    made_up.does = lambda run: "" if (run.variant, run.seed) == ("plain", 2) else "ends"
    carry_out(study(), tmp_path, launcher=made_up)
    (between,) = estimate(study(), tmp_path)
    assert (between.trials, between.counting, between.recorded) == (6, 18, 23)
    # How long the steps of an arm that joins take is not known yet.
    more = study(conditions=("tokens", "time"), variants="plain,lime,mudd", rates=(), seeds=1)
    assert [each.counting for each in estimate(more, tmp_path)] == [5]
    (new,) = estimate(study(conditions=("tokens",)), tmp_path)
    assert (new.recorded, new.counting) == (14, 9)


def test_hours_are_known_where_runs_of_the_same_shape_are_recorded(tmp_path, study):
    asked = study(conditions=("tokens",), rates=(), variants="plain,lime")
    run = asked.boards[0].base
    for variant, speed in (("plain", 2000), ("lime", 1000)):
        folder = record(tmp_path / "runs" / variant, run=replace(run, variant=variant, seed=9))
        rows = [f'{{"step": {n}, "tokens_per_second": {speed}}}\n' for n in (1, 2)]
        (folder / "metrics.jsonl").write_text("".join(rows))
    (told,) = estimate(asked, tmp_path / "out")
    assert 3600 * told.hours == pytest.approx(3 * TOKENS / 2000 + 3 * TOKENS / 1000)
    assert 3600 * estimate_run(replace(run, variant="plain")).hours == TOKENS / 2000
    other = replace(run, model=replace(run.model, num_hidden_layers=3))
    assert estimate_run(replace(other, variant="plain")).hours is None


def test_runs_whose_rates_are_not_chosen_are_not_taken_for_recorded(tmp_path, study):
    """A run at the preset's rate stands under another name."""
    asked = study(conditions=("tokens",), variants="plain,lime")
    for seed in range(3):
        run = replace(asked.boards[0].base, variant="plain", seed=seed)
        record(tmp_path / "board" / f"plain-s{seed}", run=run)
    (told,) = estimate(asked, tmp_path)
    assert (told.trials, told.counting, told.recorded) == (4, 6, 0)
    # Where all arms take the board's rate they are known at once.
    (known,) = estimate(study(conditions=("tokens",), rates=()), tmp_path)
    assert (known.trials, known.counting, known.recorded) == (0, 9, 3)


def test_what_carrying_out_refuses_is_refused_before(tmp_path, made_up, study):
    asked = study(conditions=("tokens",), rates=(), variants="plain,lime", seeds=1)
    other = record(tmp_path / "board" / "lime-s0", variant="lime", max_steps=80, preset="made-up")
    for refusing in (estimate, lambda *args: carry_out(*args, launcher=made_up)):
        with pytest.raises(ValueError, match="lime-s0"):
            refusing(asked, tmp_path)
    assert not made_up.begun
    # One that has lost what it recorded.
    shutil.rmtree(other)
    (record(other, run=replace(asked.boards[0].base, variant="lime")) / "metrics.jsonl").unlink()
    with pytest.raises(ValueError, match="lime-s0"):
        estimate(asked, tmp_path)


def test_a_host_has_no_closed_form(tmp_path):
    host = Host(model="some/model", memory="none", train="all")
    run = Run(max_steps=10, variant=HOST, model=Model(), host=host, data=Data(block_size=16))
    board = Board(name="b", base=run, arms=(Arm(name="plain", change=lambda run: run),))
    (told,) = estimate(study_of_variants([board], (0, 1), ("tokens",)), tmp_path)
    assert (told.flops, told.hours) == (None, None)
    assert told.tokens == 2 * 10 * 32 * 16


def test_arms_that_diverged_at_every_rate_count_in_no_plan(tmp_path, made_up, study):
    made_up = MadeUp(made_up.loss, lambda run: "diverges")
    with pytest.raises(RuntimeError, match="every arm diverged"):
        carry_out(study(), tmp_path, launcher=made_up)
    (told,) = estimate(study(), tmp_path)
    assert told.recorded == 6 and told.trials == 6 and told.counting == 0
