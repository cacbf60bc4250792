"""The arena: what is equal under each condition, rankings, noise, going on, refusals."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from layermem.experiments.arms import CHOOSING_SEED
from layermem.experiments.reproduction import estimates
from layermem.experiments.standings import standings
from layermem.results.arena import ArenaResult
from recorded import SIZES, record

from layermem import cli
from layermem.config import Run
from layermem.experiments import arena, arena_boards, many_runs, step_memory, step_times
from layermem.intervals import p_values_to
from layermem.models.registry import variants
from layermem.presets import get_preset
from layermem.report import arena as report
from layermem.results.files import read_result
from layermem.runs import RunFolder

BASE = Run(preset="made-up", max_steps=40, model=SIZES)
ARMS = "plain,lime,hyper_connections"
SECONDS = {"plain": [1.0, 2.0, 4.0], "lime": [1.1, 2.6, 5.0], "hyper_connections": [0.9, 1.8, 3.6]}
# One that the system could not measure.
PEAKS = {"plain": 10_000_000, "lime": 15_000_000, "hyper_connections": None}


@pytest.fixture
def begun(monkeypatch):
    """Have runs be recorded with made-up losses, and steps timed with made-up seconds.

    ``begun.does``: run to whether it ends.
    """

    class Begun(list):
        ends = staticmethod(lambda run: True)

    runs = Begun()
    gain = {"plain": 0.0, "lime": 0.5, "hyper_connections": 0.0}

    def start(run, folder, jobs, slot):
        runs.append(run)
        ends = runs.ends(run)
        if ends == "interrupted":
            raise KeyboardInterrupt
        if ends == "diverges":
            record(folder.path, run=run, rows=1, diverged=5)
            return SimpleNamespace(poll=lambda: 1, terminate=int, wait=int)
        if ends:
            noise = 0.01 * (run.seed % 7) * (-1) ** len(run.variant)
            record(folder.path, run=run, rows=1)
            loss = 1 + noise - gain[run.variant] + abs(run.optim.lr - 1e-2)
            RunFolder(folder.path).write_rows([{"step": run.max_steps, "val_loss": loss}])
        return SimpleNamespace(poll=lambda: int(not ends), terminate=int, wait=int)

    monkeypatch.setattr(many_runs, "_start_process", start)
    monkeypatch.setattr(many_runs, "_POLL_INTERVAL", 0.02)
    monkeypatch.setattr(arena_boards, "get_preset", lambda name: replace(BASE, preset=name))
    monkeypatch.setattr(
        step_times, "time_interleaved", lambda steps, *_, **__: {arm: SECONDS[arm] for arm in steps}
    )
    monkeypatch.setattr(step_memory, "measure_peak_of", lambda step, _: PEAKS[step.args[0][0]])
    return runs


def options(**changes):
    fields = {"boards": ("board",), "variants": ARMS, "rates": (1e-3, 1e-2), "seeds": 3, **changes}
    return arena.ArenaOptions(**fields)


def test_three_rankings(tmp_path, begun):
    result, failure = arena.compete(options(), tmp_path, command="layermem arena")
    assert failure is None
    by_condition = {ranking.condition: ranking for ranking in result.rankings}
    assert list(by_condition) == ["tokens", "time", "parameters"]
    # Six that choose; nine at equal tokens; LIMe is slower and both are larger than plain.
    steps = result.steps["board"].ratios
    assert steps["lime"] == 1.25 and steps["hyper_connections"] == 0.9
    at = {c: {s.arm: s for s in r.standings} for c, r in by_condition.items()}
    assert at["time"]["lime"].steps == 32 and at["tokens"]["lime"].steps == 40
    assert at["time"]["hyper_connections"].steps == 40
    plain = at["tokens"]["plain"].parameters
    for arm in ("lime", "hyper_connections"):
        assert at["tokens"][arm].parameters > plain
        assert abs(at["parameters"][arm].parameters / plain - 1) <= 0.005
    assert at["parameters"]["hyper_connections"].width_of_mlp < SIZES.intermediate_size
    for ranking in result.rankings:
        best, *others = ranking.standings
        assert best.arm == "lime" and best.rank == 1 and best.p < 0.05
        assert {other.rank for other in others} == {2, 3}
    hyper = at["tokens"]["hyper_connections"]
    assert hyper.p > 0.05 and hyper.p_to_best < 0.05
    assert read_result(ArenaResult, tmp_path / "arena" / "board") == result
    text = [" ".join(map(str, row)) for row in report.table(result.rankings[0], result).rows]
    assert "within noise" in text[1] + text[2] and "best mean" in text[0]
    of_tokens, of_time, of_parameters, of_steps, tried = report.build(result).sections[0].tables
    for shown in (of_tokens, of_time):
        assert shown.header[-2:] == ["time", "memory"]
        prices = {row[1]: row[-2:] for row in shown.texts()}
        assert prices["plain"] == ["1.00", "1.00"] and prices["lime"] == ["1.25", "1.50"]
        assert prices["hyper_connections"] == ["0.90", ""]
    assert of_parameters.header[-1] == "parameters"
    assert [row[3] for row in of_steps.texts()] == ["10MB", "15MB", ""]
    assert tried.header == ["validation loss at learning rate", "0.001", "0.01", "chosen"]
    assert "A better learning rate may lie beyond those tried" in tried.caption
    # Nothing is done twice.
    count = len(begun)
    assert arena.compete(options(), tmp_path, command="layermem arena")[0] == result
    assert len(begun) == count
    assert {run.seed for run in begun} == {0, 1, 2, CHOOSING_SEED}


@pytest.mark.parametrize(
    ("ratio", "steps"), [(0.5, 400), (1.0, 400), (1.009, 400), (1.02, 392), (1.25, 320), (900, 1)]
)
def test_slower_steps_are_fewer(ratio, steps):
    """Beyond what two timings of the same steps differ by."""
    assert arena._at_equal_time(replace(BASE, max_steps=400), ratio).max_steps == steps


def test_shapes_of_one_preset_are_ranked_together(tmp_path, begun):
    boards = ("board@4x32", "board@8x16", "other")
    result, _ = arena.compete(options(boards=boards, variants="plain,lime"), tmp_path)
    assert [ranking.board for ranking in result.shapes] == [
        "board, arms and shapes",
        "board, shapes of plain",
        "board, shapes of lime",
    ]
    together, plain, lime = result.shapes
    assert {s.arm for s in together.standings} == {
        *("plain, 4x32", "plain, 8x16", "lime, 4x32", "lime, 8x16")
    }
    assert together.first == "plain, 4x32" and lime.first == "4x32"
    # LIMe's made-up losses are lower, whatever the shape; shapes do not differ.
    assert {s.arm for s in together.standings[:2]} == {"lime, 4x32", "lime, 8x16"}
    assert all(s.difference.mean == 0 for s in lime.standings if s.arm != "4x32")
    assert [len(s.by_seed) for s in plain.standings] == [3, 3]
    counts = [s.parameters for s in together.standings]
    assert max(counts) / min(counts) < 1.01
    page = report.build(result)
    assert "Wide or deep" in [section.title for section in page.sections]
    together = tmp_path / "arena" / "board-4x32+board-8x16+other"
    assert read_result(ArenaResult, together) == result


def test_arenas_of_other_boards_stay(tmp_path, begun):
    one = arena.compete(options(), tmp_path)[0]
    arena.compete(options(boards=("other",)), tmp_path)
    assert read_result(ArenaResult, tmp_path / "arena" / "board") == one
    begun.clear()
    both = arena.compete(options(boards=("board", "other")), tmp_path)[0]
    assert not begun and both.rankings[:3] == one.rankings
    assert read_result(ArenaResult, tmp_path / "arena" / "board+other") == both
    assert read_result(ArenaResult, tmp_path / "arena" / "board") == one
    many = tuple(f"a-board-with-a-long-name-{number}" for number in range(10))
    with pytest.raises(ValueError, match="name fewer of them"):
        arena.compete(options(boards=many), tmp_path)
    assert not begun


def test_a_shape_has_the_first_ones_parameters():
    wide, deep, preset = arena_boards.open_boards(
        ("tiny-lm@16x64", "tiny-lm@64x32", "tiny-lm")
    ).values()
    assert (deep.model.num_hidden_layers, deep.model.hidden_size) == (64, 32)
    # Heads keep their width, 8.
    assert deep.model.num_attention_heads == 4 and deep.model.num_key_value_heads is None
    assert wide.model.intermediate_size == 256 and deep.model.intermediate_size != 128
    counts = [arena_boards.parameters(replace(run, variant="plain")) for run in (wide, deep)]
    assert abs(counts[1] / counts[0] - 1) <= 0.005
    assert preset == get_preset("tiny-lm")
    same = replace(wide, model=replace(wide.model, num_hidden_layers=8))
    assert same.id == preset.id


def test_an_interrupted_arena_goes_on(tmp_path, begun):
    begun.ends = lambda run: "interrupted" if run.max_steps == 32 and run.seed == 1 else True
    with pytest.raises(KeyboardInterrupt):
        arena.compete(options(), tmp_path)
    count = len(begun)
    begun.ends = lambda run: True
    result, _ = arena.compete(options(), tmp_path)
    # The run that was interrupted is begun again, those before it are not.
    assert begun[count].id == begun[count - 1].id
    assert len({run.id for run in begun}) == len(begun) - 1
    assert all(run.state == "ended" for run in result.runs)


def test_a_failed_arm_has_no_rank(tmp_path, begun):
    begun.ends = lambda run: (run.variant, run.seed) != ("lime", 1)
    result, failure = arena.compete(options(), tmp_path)
    assert "runs failed" in failure
    last = result.rankings[0].standings[-1]
    assert (last.arm, last.rank, sorted(last.by_seed)) == ("lime", None, [0, 2])
    assert "seeds 1" in report.table(result.rankings[0], result).rows[-1][2]
    assert [run.state for run in result.runs].count("failed") == 2


def test_an_arm_that_diverged_at_every_rate_has_no_rank(tmp_path, begun):
    begun.ends = lambda run: "diverges" if run.variant == "lime" else True
    boards = ("board@4x32", "board@8x16")
    result, failure = arena.compete(options(boards=boards), tmp_path)
    assert failure is None
    for ranking in result.rankings:
        *others, last = ranking.standings
        assert {other.rank for other in others} == {1, 2} and not any(s.note for s in others)
        assert (last.arm, last.rank, last.by_seed, last.mean) == ("lime", None, {}, None)
        assert last.note == "diverged at every learning rate that was tried"
    assert result.rates["board-4x32"].keys() == {"plain", "hyper_connections"}
    # Nothing of it was trained but the runs that tried rates.
    assert {run.seed for run in begun if run.variant == "lime"} == {CHOOSING_SEED}
    assert not any("lime" in run.name for run in result.runs if "/rates/" not in run.name)
    (of_lime,) = (ranking for ranking in result.shapes if ranking.board.endswith("shapes of lime"))
    assert all(standing.note == last.note for standing in of_lime.standings)
    row = report.table(result.rankings[0], result).rows[-1]
    assert row[:2] == ["", "lime"] and last.note in row[2]
    *_, steps, tried = report.build(result).sections[0].tables
    assert [row[-1] for row in steps.texts()] == ["0.01", "none", "0.01"]
    begun.ends = lambda run: "diverges"
    with pytest.raises(RuntimeError, match="every arm diverged at every learning rate on board"):
        arena.compete(options(), tmp_path / "other")


def test_arms_are_added(tmp_path, begun, monkeypatch):
    """What was timed stays as it was, and its runs with it."""
    before, _ = arena.compete(options(variants="plain,lime"), tmp_path)
    ids = {run.id for run in begun}
    begun.clear()
    timed = []
    slower = {
        "plain": [2.0, 2.0, 2.0],
        "lime": [9.0, 9.0, 9.0],
        "hyper_connections": [5.0, 4.0, 6.0],
    }

    def time_interleaved(steps, *_, **__):
        timed.append(list(steps))
        return {arm: slower[arm] for arm in steps}

    monkeypatch.setattr(step_times, "time_interleaved", time_interleaved)
    result, _ = arena.compete(options(), tmp_path)
    assert timed == [["plain", "hyper_connections"]]
    ratios = result.steps["board"].ratios
    assert dict(ratios) == {"plain": 1, "lime": 1.25, "hyper_connections": 2.5}
    assert result.steps["board"].seconds["plain"] == before.steps["board"].seconds["plain"] == 2
    assert not ids & {run.id for run in begun}
    assert {run.variant for run in begun} == {"hyper_connections"}
    assert {run.max_steps for run in begun} == {40, 16}
    assert arena.compete(options(), tmp_path)[0] == result and len(timed) == 1
    # A page shows the steps of its own arms.
    fewer, _ = arena.compete(options(variants="plain,lime"), tmp_path)
    (section,) = (s for s in report.build(fewer).sections if s.title == "board")
    assert [row[0] for row in section.tables[-1].rows] == ["plain", "lime"]


def test_steps_that_do_not_compare_are_refused(tmp_path, begun, monkeypatch):
    arena.compete(options(variants="plain,lime"), tmp_path)
    count = len(begun)
    # Ratios to the plain decoder say nothing of those to LIMe; said before anything is trained.
    with pytest.raises(ValueError, match=r"another first arm \(plain, and this is lime\)"):
        arena.compete(options(variants="lime,plain", rates=(5e-3,)), tmp_path)
    assert len(begun) == count
    file = tmp_path / "arena" / "board" / "steps.json"
    time = re.escape(str(tmp_path / "board" / "time"))
    measured = json.loads(file.read_text())
    file.write_text(file.read_text()[:-20])
    with pytest.raises(ValueError, match=rf"{file} is not what .*; delete it, and {time} with it"):
        arena.compete(options(variants="plain,lime"), tmp_path)
    file.write_text(json.dumps({**measured, "base": "0" * 12}))
    with pytest.raises(ValueError, match=rf"another model, data or sizes.*delete it, and {time}"):
        arena.compete(options(variants="plain,lime"), tmp_path)
    # Arms of two machines would stand side by side; without a new arm nothing is measured here.
    file.write_text(json.dumps({**measured, "machine": "an abacus"}))
    with pytest.raises(ValueError, match=r"another machine \(an abacus, and this is "):
        arena.compete(options(), tmp_path)
    arena.compete(options(variants="plain,lime"), tmp_path)


@pytest.mark.parametrize("variant", [name for name in variants() if name != "plain"])
@pytest.mark.parametrize("board", ["tiny-lm", "tiny-aet-4", "tiny-chains", "tiny-mqar"])
def test_every_variant_can_have_the_plain_decoders_parameters(board, variant, monkeypatch):
    sizes = (replace(get_preset(board).model, vocab_size=100).sizes(), 20.0)
    monkeypatch.setattr(
        arena_boards, "model_sizes", lambda run: ({**sizes[0], **run.model.sizes()}, 20.0)
    )
    base = get_preset(board)
    base = replace(base, model=replace(base.model, vocab_size=100))
    run = arena_boards.at_equal_parameters(replace(base, variant=variant), base)
    plain = arena_boards.parameters(replace(base, variant="plain"))
    assert arena_boards.parameters(run) <= plain * 1.005
    # Nothing but the mlp is changed, and it only where there is more than the tolerance.
    same = replace(run, model=replace(run.model, intermediate_size=base.model.intermediate_size))
    assert same == replace(base, variant=variant)
    if run.model != base.model:
        assert arena_boards.parameters(run) >= plain * 0.995
        assert arena_boards.parameters(same) > plain * 1.005


def test_what_cannot_be_made_equal_is_refused():
    model = replace(SIZES, hidden_size=4, intermediate_size=1, num_hidden_layers=1)
    base = replace(BASE, model=model)
    with pytest.raises(ValueError, match=r"hyper_connections has \d+ parameters on made-up at 1x4"):
        arena_boards.at_equal_parameters(replace(base, variant="hyper_connections"), base)


def test_memory_is_measured_once_and_again_for_other_sizes(tmp_path, monkeypatch):
    measured = []

    def peak(make_step, shape):
        ((variant, fields),) = make_step.args
        measured.append(variant)
        return fields["hidden_size"] * shape.batch

    monkeypatch.setattr(step_memory, "measure_peak_of", peak)
    file = tmp_path / "memory.json"

    def measure(variants, base=BASE):
        study = arena.studies(options(boards=("tiny-lm",), variants=variants))[0]
        return arena._measured_memory(replace(study, base=base), file).peaks

    width, batch = BASE.model.hidden_size, BASE.optim.batch_size
    assert measure("plain,lime") == {"plain": width * batch, "lime": width * batch}
    measure("plain,lime")
    assert measured == ["plain", "lime"]
    assert list(measure("plain,lime,mudd")) == ["plain", "lime", "mudd"]
    assert measured == ["plain", "lime", "mudd"]
    wider = replace(BASE, model=replace(BASE.model, hidden_size=2 * width))
    assert measure("plain,lime", wider) == {"plain": 2 * width * batch, "lime": 2 * width * batch}
    monkeypatch.setattr(step_memory, "describe_machine", lambda device: "another machine")
    measured.clear()
    measure("plain,lime", wider)
    assert measured == ["plain", "lime"]
    file.write_text(file.read_text()[:-20])
    with pytest.raises(ValueError, match=rf"{file} is not what .*; delete it: it is measured"):
        measure("plain,lime", wider)


def test_steps_are_timed_in_turn(tmp_path):
    """Without made-up seconds."""
    study = arena.studies(options(boards=("tiny-lm",), variants="plain,lime"))[0]
    small = replace(study, base=replace(BASE, optim=replace(BASE.optim, batch_size=2)))
    steps = arena._measured_steps(small, tmp_path / "steps.json", tmp_path / "time")
    assert set(steps.ratios) == {"plain", "lime"} and steps.ratios["plain"] == 1
    assert steps.ratios["lime"] > 0.5 and steps.rounds == 9
    assert arena._measured_steps(small, tmp_path / "steps.json", tmp_path / "time") == steps


def test_steps_are_timed_as_runs_are_trained():
    """In the precision and the mode of the board, not in those of this machine."""
    half = replace(BASE, compute=replace(BASE.compute, precision="bfloat16", compile=True))
    assert step_times.shape_of(BASE, 8).mode == "eager"
    shape = step_times.shape_of(half, 8)
    assert (shape.precision, shape.mode, shape.warm_up) == ("bfloat16", "default", 3)
    assert not shape.checkpoint_activations
    exact = replace(
        BASE, compute=replace(BASE.compute, precision="float32", checkpoint_activations=True)
    )
    assert step_times.shape_of(exact, 8).precision == "float32"
    assert step_times.shape_of(exact, 8).checkpoint_activations


def test_an_arm_that_has_no_equal_parameters_is_refused_first():
    """Not after hours of training on the boards before."""
    boards = ("tiny-lm@16x64", "tiny-lm@64x32")
    with pytest.raises(ValueError, match="mudd has .* on tiny-lm at 64x32"):
        arena.studies(options(boards=boards, variants="plain,lime,mudd"))
    assert len(arena.studies(options(boards=boards, variants="plain,lime"))) == 2


def test_ranks_by_what_is_better():
    sizes = dict.fromkeys("ab", (1, 1, 1))
    values = {"a": {0: 0.5, 1: 0.6, 2: 0.4}, "b": {0: 0.7, 1: 0.75, 2: 0.65}}
    higher = standings(values, (0, 1, 2), sizes, higher_is_better=True)
    assert [s.arm for s in higher] == ["b", "a"]
    assert higher[0].difference.mean == pytest.approx(0.2)
    lower = standings(values, (0, 1, 2), sizes, higher_is_better=False)
    assert [(s.arm, s.rank) for s in lower] == [("a", 1), ("b", 2)]
    three = {"a": {}, "b": {0: 1.0, 1: 2.0, 2: 3.0}}
    alone = standings(three, (0, 1, 2), sizes, higher_is_better=True)
    assert [(s.arm, s.rank, s.difference) for s in alone] == [("b", 1, None), ("a", None, None)]


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_fewer_than_three_seeds_rank_no_arm(seeds):
    """Of two seeds 12.5% and 98.2% the mean is the highest, +- 544%."""
    values = {"a": (0.125, 0.982), "b": (0.5, 0.52), "c": (0.51, 0.5)}
    found = standings(
        {arm: {seed: of_arm[seed] for seed in seeds} for arm, of_arm in values.items()},
        seeds,
        dict.fromkeys("abc", (1, 1, 1)),
        higher_is_better=True,
    )
    assert {s.rank for s in found} == {s.p_to_best for s in found} == {None}
    assert all(s.note == "" and s.mean.count == len(seeds) for s in found)


def test_an_arm_as_good_as_the_best_is_seldom_told_from_it():
    """A pair's p-value is that among all pairs: any could have been the best and another."""
    arms = {"a": (1.0, 1.2, 0.9, 1.1), "b": (1.1, 1.5, 1.3, 1.2), "c": (1.4, 1.3, 1.5, 1.7)}
    values = {arm: dict(enumerate(of_arm)) for arm, of_arm in arms.items()}
    sizes = dict.fromkeys("abc", (1, 1, 1))
    found = {s.arm: s for s in standings(values, range(4), sizes, higher_is_better=False, looks=1)}
    adjusted = p_values_to("a", values)
    assert {arm: s.p_to_best for arm, s in found.items()} == {"a": None, **adjusted}
    assert found["c"].p_to_best > found["c"].p
    again = standings(values, range(4), sizes, higher_is_better=False, looks=2)
    assert {s.arm: s.p_to_best for s in again if s.p_to_best} == {
        arm: pytest.approx(min(1.0, 4 * p)) for arm, p in adjusted.items()
    }


def test_more_seeds_are_another_look(tmp_path, begun):
    three, _ = arena.compete(options(), tmp_path)
    again, _ = arena.compete(options(), tmp_path)
    assert again == three and {r.looks for r in three.rankings} == {((0, 1, 2),)}
    five, _ = arena.compete(options(seeds=5), tmp_path)
    assert {r.looks for r in five.rankings} == {((0, 1, 2), (0, 1, 2, 3, 4))}
    fresh, _ = arena.compete(options(seeds=5), tmp_path / "fresh", [tmp_path])
    p, of_fresh = ({s.arm: s.p for s in result.rankings[0].standings} for result in (five, fresh))
    assert p["lime"] == pytest.approx(4 * of_fresh["lime"]) and of_fresh["lime"] > 0
    assert "Looked at with 3, then 5 seeds" in report.table(five.rankings[0], five).caption
    assert "Looked at" not in report.table(fresh.rankings[0], fresh).caption
    # Other learning rates make other runs, which were not looked at.
    other, _ = arena.compete(options(seeds=3, rates=(3e-3,)), tmp_path)
    assert {r.looks for r in other.rankings} == {((0, 1, 2),)}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["--variants", "plain"], "--variants needs two arms at least, got plain"),
        (["--board", "aet-4,aet-4"], "--board needs different boards, got aet-4, aet-4"),
        (["--board", "recall,mqar"], "two of --board are one preset in one shape: recall, mqar"),
        (
            ["--board", "tiny-lm@64"],
            "a board is PRESET or PRESET@LAYERSxWIDTH (tiny-lm@64x32)",
        ),
        (["--board", "tiny-lm@4x20,tiny-lm"], "width 20 is no whole number of heads of width 8"),
        (["--board", "aet-44"], "unknown preset 'aet-44'; did you mean aet-4"),
        (["--variants", "plain,lame"], "unknown variant 'lame'"),
        (["--variants", "plain,lime:foo=1", "--dry-run"], "LimeConfig has no field 'foo'"),
        (
            ["--board", "tiny-lm", "--variants", "plain,lime:router=lst", "--dry-run"],
            "lime:router=lst: Field 'router' expected one of",
        ),
        (["--board", "tiny-lm", "--runs", "nowhere", "--dry-run"], "nowhere is no folder"),
        (["--seeds", "1001", "--board", "tiny-lm", "--dry-run"], "seed 1000 is kept for choosing"),
    ],
)
def test_what_is_asked_wrongly(argv, message, tmp_path):
    with pytest.raises(SystemExit, match=re.escape(message)):
        cli.main(["arena", *argv, "--out", str(tmp_path)])


def test_the_command(tmp_path, begun, capsys, monkeypatch):
    asked = ["arena", "--board", "tiny-lm", "--variants", ARMS, "--out", str(tmp_path)]
    monkeypatch.setitem(estimates._STEP_FLOPS, "cpu", 1e6)
    cli.main([*asked, "--dry-run"])
    # Three arms at four rates; three arms, five seeds, three conditions.
    assert "57 runs at most" in capsys.readouterr().out and not begun
    cli.main([*asked, "--seeds", "2", "--rates", "1e-2"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "is narrower" in shown and "within noise" in shown
    page = (tmp_path / "arena" / "tiny-lm" / "index.html").read_text()
    assert "equal training time" in page and "over the first arm" in page
