"""The paper's artefacts: their plans at every scale, and their numbers against its text."""

import functools
import re
from pathlib import Path

import pytest

from layermem.models.registry import lookup
from layermem_bench.efficiency import model_sizes
from layermem_bench.paper import costs, get_artefact, names
from layermem_bench.paper.artefact import SCALES, Observing
from layermem_bench.presets import get_preset
from layermem_bench.results.costs import Measurement
from layermem_bench.study import estimates
from layermem_bench.study.boards import open_boards, parse_arms
from layermem_bench.study.planning import counting_runs, stages, trials
from layermem_bench.study.records import RecordedRuns

PAPER = Path(__file__).parents[3] / "shared" / "paper" / "lime_paper.txt"
# It draws problems, the same ones for many artefacts.
_vocabulary_and_length = functools.cache(model_sizes.vocabulary_and_length)


def runs_of(study, folder="runs"):
    """Return the planned runs of a study by name, no rate being chosen yet."""
    plan, recorded = {}, RecordedRuns(Path(folder))
    for stage in stages(study.boards):
        for board in stage:
            plan |= trials(board) | counting_runs(board, study.seeds, {}, recorded.path_of)
    return plan


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", names())
def test_every_artefact_is_planned_at_every_scale(name, scale, tmp_path, monkeypatch):
    monkeypatch.setattr(model_sizes, "vocabulary_and_length", _vocabulary_and_length)
    study = get_artefact(name).study(name, scale)
    boards, runs = estimates.estimate(study, tmp_path), runs_of(study)
    assert sum(board.trials + board.counting for board in boards) == len(runs)
    assert (not runs) == (name in ("table8", "table9"))
    for board in boards:
        assert board.flops > 0 and board.tokens > 1e4 and not board.recorded
    assert study.claims
    # What is claimed is of arms that are trained.
    arms = {planned.arm for planned in runs.values()}
    for claim in study.claims if arms else ():
        assert any(claim.arm.startswith(arm) for arm in arms), claim


def test_the_deepest_tiny_models_are_those_of_a_board_of_that_shape():
    """Runs of figure 6 are used for the board of that shape, and the other way round."""
    deepest = get_artefact("fig6").boards("tiny")[-1]
    deep, wide = open_boards(("tiny-lm@64x32", "tiny-lm@16x64"), "plain,lime")
    assert deepest.base.id == deep.base.id != wide.base.id
    small, paper = (get_artefact("fig6").boards(scale)[1] for scale in SCALES[1:])
    assert small.base.model.sizes() == {**paper.base.model.sizes(), "num_hidden_layers": 32}


@pytest.mark.parametrize("name", names())
def test_scale_paper_is_the_papers_configuration(name):
    study = get_artefact(name).study(name, "paper")
    for board in study.boards:
        assert board.base == get_preset(board.base.preset)
        assert board.base.preset.startswith("paper-") and not board.rates
    bases = {board.name: board.base for stage in stages(study.boards) for board in stage}
    assert all(p.run.seed == bases[p.board].seed for p in runs_of(study).values())


def test_the_fixed_names():
    figures = [f"fig{i}" for i in range(1, 12)]
    tables = ["table1", *(f"table{i}" for i in range(4, 10))]
    assert names() == [*figures, "prosqa", *tables]
    with pytest.raises(ValueError, match="'table77'.*table7"):
        get_artefact("table77")


def test_one_run_has_one_folder_in_all_artefacts(tmp_path, monkeypatch):
    """Runs are shared between artefacts: the same name is the same run."""
    # A plan looks for runs that are there already.
    monkeypatch.chdir(tmp_path)
    by_name = {}
    for scale in SCALES:
        for name in names():
            for label, planned in runs_of(get_artefact(name).study(name, scale, 2)).items():
                assert by_name.setdefault(label, planned.run.id) == planned.run.id, label


def test_fine_tuning_starts_from_the_pretrained_run_of_the_same_arm_and_seed():
    runs = runs_of(get_artefact("prosqa").study("prosqa", "paper", 2))
    tuned = {label: p.run for label, p in runs.items() if label.startswith("paper-prosqa")}
    assert len(tuned) == 4 and list(runs)[0].startswith("paper-150m/")
    for label, run in tuned.items():
        pretrained = label.replace("paper-prosqa", "paper-150m")
        assert run.model.pretrained == f"runs/{pretrained}/final"
        assert (runs[pretrained].run.variant, runs[pretrained].run.seed) == (run.variant, run.seed)


def paper_tables(text):
    """Return each table's rows, cells by line: the lines before its caption."""
    tables, rows = {}, []
    for line in text.splitlines():
        if caption := re.match(r"Table (\d+):", line):
            tables[f"Table {caption[1]}"], rows = rows, []
        elif "\t" in line:
            rows.append(line.split("\t"))
    return tables


def printed_as(number):
    """Return the ways in which a number may be printed."""
    value = number.value
    if number.is_share:
        return {f"{100 * value:.2f}", f"+{100 * value:.2f}%"}
    return {
        *(f"{value:.4f}", f"{value / 1e9:.5f}", f"{value / 1e12:.4f}"),
        *(f"{1e3 * value:.3f}", f"{value / 1e9:.3f}"),
    }


def test_the_papers_numbers_are_in_its_text():
    if not PAPER.exists():
        pytest.skip("the text of the paper is not at hand")
    text = PAPER.read_text(encoding="utf-8")
    tables, checked = paper_tables(text), 0
    labels = {"plain": "LLaM", "hyper_connections": "HC", "lime": "LIM"}
    for name in names():
        for number in get_artefact(name).numbers:
            if not number.where.startswith("Table "):
                short = f"{100 * number.value:.4g}"
                assert short in text or f"{number.value:.1f}" in text, number
                continue
            rows = [
                row
                for row in tables[number.where]
                if any(cell.startswith(labels[number.arm.split(":")[0]]) for cell in row)
            ]
            cells = " ".join(cell for row in rows for cell in row)
            assert any(p in cells for p in printed_as(number)), number
            checked += 1
    assert checked > 100
    # The column of each task, by the table's header.
    columns = {"average": "Avg"}
    for name in ("table1", "table4", "table5", "table6"):
        rows = {row[0].upper()[:2]: row for row in tables[f"Table {name[5:]}"]}
        for number in get_artefact(name).numbers:
            row = rows[labels[number.arm].upper()[:2]]
            at = rows["MO"].index(columns.get(number.quantity, number.quantity))
            assert float(row[at]) == pytest.approx(100 * number.value), number
    arms = {"average": "LIME average", "": "LIME"}
    by_label = {row[0]: row[1] for row in tables["Table 7"]}
    for number in get_artefact("table7").numbers:
        parts = re.findall(r"router=(\w+)|window=(\d)", number.arm)
        kind, window = "".join(p[0] for p in parts), "".join(p[1] for p in parts)
        label = arms.get(kind, f"LIME {kind}-{window}")
        assert by_label["LLaMA" if number.arm == "plain" else label] == f"{number.value:.4f}"


def _sources(arm, layers):
    """Return what decides an arm of table 7: whether it learns weights, and over which sources."""
    variant, options = parse_arms(arm)[arm]
    fields = dict(option.split("=") for option in options)
    if "router_window" in fields:
        fields["router_window"] = int(fields["router_window"])
    entry = lookup(variant)
    config = entry.config(num_hidden_layers=layers, **fields)
    sources = (
        () if variant == "plain" else [entry.variant.sources(config, at) for at in range(layers)]
    )
    return variant, fields.get("router") == "average", tuple(sources)


@pytest.mark.parametrize("scale", SCALES)
def test_arms_of_table_7_are_models_that_differ(scale):
    artefact = get_artefact("table7")
    for board in artefact.boards(scale):
        layers = board.base.model.num_hidden_layers
        arms = {arm.name for arm in board.arms}
        assert len({_sources(name, layers) for name in arms}) == len(arms), board.name
        full = _sources("lime", layers)
        for left_out in {number.arm for number in artefact.numbers} - arms:
            assert _sources(left_out, layers) == full, left_out
    claimed = {claim.against for claim in artefact.claims(scale)} - {"plain"}
    assert claimed <= {arm.name for board in artefact.boards(scale) for arm in board.arms}


def test_what_a_step_costs_is_relative_to_plains_of_the_same_repeat(monkeypatch, tmp_path):
    def measure_once(run, modes, file):
        slower = 1 + int(file.stem[-1])  # A machine that is busy in one repeat.
        more = {"plain": 1.0, "lime": 1.1, "hyper_connections": 1.5}
        steps = {
            arm: Measurement(
                seconds=slower * more[arm], low=0, high=0, peak=None if arm == "lime" else 10**6
            )
            for arm in more
        }
        return dict.fromkeys(modes, steps)

    monkeypatch.setattr(costs, "measure_once", measure_once)
    trained = Observing(scale="tiny", seeds=(0, 1), records={}, out=tmp_path)
    observed = {(o.quantity, o.arm): o for o in get_artefact("table9").observe(trained)}
    more_time = observed["time above plain, grouped queries, eager", "lime"]
    assert more_time.by_seed == pytest.approx({0: 0.1, 1: 0.1})
    seconds = observed["seconds of a step, grouped queries, eager", "lime"]
    assert seconds.by_seed == pytest.approx({0: 1.1, 1: 2.2})
    # What the system does not say has no row.
    peaks = {arm for quantity, arm in observed if quantity.startswith("peak")}
    assert peaks == {"plain", "hyper_connections"}
