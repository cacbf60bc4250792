"""The paper's artefacts: their plans and claims at every scale, and their numbers against it."""

import pytest

from layermem.models.registry import lookup
from layermem_bench import cli
from layermem_bench.config.typed_dicts import read_result
from layermem_bench.paper import get_artefact, names, state_of
from layermem_bench.paper.artefact import SCALES
from layermem_bench.paper.evaluated import COLUMNS
from layermem_bench.presets import get_preset
from layermem_bench.studies.boards import open_boards
from layermem_bench.studies.result import StudyResult

COUNTED = ("table8", "table9")


@pytest.fixture(scope="module")
def artefacts():
    """Every artefact at every scale."""
    return {(name, scale): get_artefact(name, scale) for name in names() for scale in SCALES}


def test_the_fixed_names():
    figures = [f"fig{i}" for i in range(1, 12)]
    tables = ["table1", *(f"table{i}" for i in range(4, 10))]
    assert names() == [*figures, "prosqa", *tables]


def runs_of(study):
    """Yield the board's name, the arm's and the run of each, before rates and seeds."""
    for board in study.boards:
        for arm in board.arms:
            yield board.name, arm.name, arm.change(board.base)


def test_every_artefact_is_a_study_whose_claims_are_of_its_arms(artefacts):
    for (name, scale), study in artefacts.items():
        assert study.name == f"paper/{name}-{scale}" and study.title and study.claim
        assert len(study.seeds) == {"tiny": 5, "small": 3, "paper": 1}[scale]
        runs = list(runs_of(study))
        assert (not runs) == (name in COUNTED) and study.claims
        for board in study.boards if scale == "paper" else ():
            # The paper's own configuration, at its one rate and seed.
            assert board.base == get_preset(board.base.preset) and not board.rates
            assert board.base.preset.startswith("paper-") and study.seeds == (board.base.seed,)
        arms = {arm for _, arm, _ in runs} or {"plain", "lime", "hyper_connections"}
        for claim in study.claims:
            for arm in (claim.arm, claim.against):
                assert arm is None or any(arm.startswith(each) for each in arms), claim


def test_one_run_has_one_name_in_all_artefacts(artefacts):
    """Runs are shared between artefacts: the same board and arm is the same run."""
    by_name = {}
    for (_, scale), study in artefacts.items():
        for board, arm, run in runs_of(study):
            assert by_name.setdefault((scale, board, arm), run.id) == run.id, (board, arm)


def test_the_deepest_tiny_models_are_those_of_a_board_of_that_shape(artefacts):
    """Runs of figure 6 are used for the board of that shape, and the other way round."""
    deepest = artefacts["fig6", "tiny"].boards[-1]
    deep, wide = open_boards(("tiny-lm@64x32", "tiny-lm@16x64"), "plain,lime")
    assert deepest.base.id == deep.base.id != wide.base.id
    (board,) = artefacts["prosqa", "paper"].boards
    assert board.starts_from.name == "paper-150m"


def test_arms_of_table_7_are_models_that_differ(artefacts):
    """A window that reaches every layer is the full router: which those are, layer by layer."""
    full = {8: {("first", 6)}, 12: set()}
    full[4] = {("last", 4), ("last", 6), ("first", 2), ("first", 4), ("first", 6)}
    of_scales = [artefacts["table7", scale] for scale in SCALES]
    for artefact, board in ((each, board) for each in of_scales for board in each.boards):
        left_out = {n.arm for n in artefact.papers} - {arm.name for arm in board.arms}
        layers = board.base.model.num_hidden_layers
        assert left_out == {f"lime:router={k}:router_window={w}" for k, w in full[layers]}
        entry, every = lookup("lime"), {"num_hidden_layers": layers}
        for kind, window in full[layers]:
            config = entry.config(**every, router=kind, router_window=window)
            whole = [entry.variant.sources(entry.config(**every), at) for at in range(layers)]
            assert [entry.variant.sources(config, at) for at in range(layers)] == whole


def test_a_table_can_be_had_without_some_of_its_tasks(artefacts):
    """Averages are those of the others then, the paper's too."""
    part = get_artefact("table1", "tiny", without=["MultiRC", "wic", "wic"])
    assert part.tasks == ("QNLI", "ARC-E", "ARC-C", "KV", "Induction", "LD-3")
    average = "average without MultiRC, WiC"
    assert {claim.quantity for claim in part.claims} == {average}
    (ours,) = [n for n in part.papers if (n.quantity, n.arm) == (average, "lime")]
    six = (51.43, 71.15, 39.30, 55.64, 55.36, 34.47)
    assert ours.value == pytest.approx(sum(six) / 600, abs=1e-6)
    assert {number.quantity for number in part.papers} == {*part.tasks, average}
    assert set(artefacts["table1", "tiny"].tasks) <= set(COLUMNS)


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["paper/tabel7"], "'tabel7'.*table7"),
        (["paper/fig1", "--records", "here", "--dry-run"], "--records here"),
        (["paper/fig1", "--without", "WiC"], "--without WiC"),
        (["paper/table5", "--without", "WiC", "--dry-run"], "--without WiC.*arc-e.*obqa"),
        (["paper/table5", "--without", "ARC-E", "ARC-C", "HellaSwag", "OBQA"], "--without"),
        (["paper/table7", "--scale", "paper"], "table7.*paper.*a GPU"),
    ],
)
def test_what_is_asked_wrongly(argv, named, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match=named):
        cli.main(["study", *argv, "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_an_artefact_without_runs_by_its_command_and_where_it_stands(tmp_path):
    def state():
        return state_of(get_artefact("table8", "tiny"), tmp_path)

    assert state() == "not begun"
    cli.main(["study", "paper/table8", "--out", str(tmp_path)])
    folder = tmp_path / "studies" / "paper" / "table8-tiny"
    result = read_result(StudyResult, folder / "study.json")
    more = result.computed("parameters above plain, full attention")
    assert more["plain"] == {0: 0.0} and 0 < more["lime"][0] < 0.01
    assert "1.17687" in (folder / "index.html").read_text() and state() == "done"
    text = (folder / "study.json").read_text()
    (folder / "study.json").write_text(text[:-20])
    assert state().startswith("damaged")
