"""`layermem study`: arms side by side, seed by seed, as a table and a page.

Options that all studies have (``Carrying``), those of variants (``Arms``), and each kind's own few.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro

from layermem_base.number_ranges import SEED, above, at_least, between, number
from layermem_bench.cli.options import StartingRun, read_options, resolve_run
from layermem_bench.cli.screen import show_estimates, show_result
from layermem_bench.studies.executors import Launching, executor_of
from layermem_bench.studies.result import Scale

if TYPE_CHECKING:
    from layermem_bench.studies.definition import Study

_RECIPE = (
    "plain,value_residual,mudd,recipe,recipe+mudd,value_residual+mudd,hyper_connections,lime,"
    "recipe_half,plain:num_key_value_heads=2"
)
_ASKED = (
    *(f"{arm} below plain" for arm in _RECIPE.split(",")[1:8]),
    *("recipe below value_residual", "recipe+mudd below value_residual+mudd"),
    *(f"{arm} above plain" for arm in _RECIPE.split(",")[8:]),
)


@dataclass(frozen=True, kw_only=True)
class Carrying(Launching):
    """Compare arms, seed by seed; ended runs are not run again, begun ones are resumed.

    layermem study WHAT [OPTIONS], where WHAT is

    PRESET: variants on a preset, or on the config of a run;

    BOARD,BOARD or PRESET@LAYERSxWIDTH: variants on several boards, on equal terms;

    paper/NAME: a table or figure of the paper; NAME: a study of a plugin;

    retrofit MODEL: ways of going on training a model; recipe: which layer memory is the best one.

    Most have further options, --variants and --rates above all: layermem study WHAT --help.
    """

    usual: ClassVar[tuple[str, ...]] = ("tokens", "time", "parameters")
    """What is equal where --conditions are not given."""

    seeds: int | None = number(None, between(1, 1000))
    """Seeds of every arm; None: 5, with --ask 8 (the paper: at scale small 3, at scale paper 1)."""
    conditions: tuple[Literal["tokens", "time", "parameters"], ...] = ()
    """What is equal between the arms: tokens, time (faster steps: more of them), parameters (by the
    width of the mlp). None given: tokens; on several boards all, of retrofit also time."""
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print how many runs there are, which are recorded, what the others take; train nothing."""
    out: Path = Path("runs")
    """Folder of the runs, OUT/BOARD/RUN, of which recorded ones are not run again, and of the
    result, OUT/studies/STUDY."""


@dataclass(frozen=True, kw_only=True)
class Arms(Carrying):
    """Arms of variants and what they try."""

    variants: str = "plain,lime"
    """Variants, the others are compared with the first; options follow colons
    (lime:router=last:router_window=4). all: every variant, the plain decoder first."""
    rates: tuple[float, ...] = number((), above(0))
    """Learning rates that every arm tries on a seed kept for that; each takes its best by
    validation loss. One alone is taken by all. None: the board's."""
    ask: tuple[str, ...] = ()
    """What the study is to tell, each "ARM below ARM" or "ARM above ARM", on every board under
    every condition: tested alone, all else is description. None: arms are tested together. Of the
    defaults those count whose arms are there."""
    margin: float | None = number(None, above(0))
    """A difference that would matter: of one that is not told from 0 it may be told that it is no
    larger."""


@dataclass(frozen=True, kw_only=True)
class OfPreset(StartingRun, Arms):
    """Compare variants on a preset, or on the config of a run, seed by seed; every other option is
    a field of the runs' config, as in `layermem train`."""

    keeps_variant = False
    usual = ("tokens",)
    variant: tyro.conf.Suppress[str] = "lime"


@dataclass(frozen=True, kw_only=True)
class OfBoards(Arms):
    """Rank variants on several boards at equal tokens, training time and parameters."""

    boards: tyro.conf.Positional[str]
    """Presets, separated by commas; PRESET@LAYERSxWIDTH is one in another shape: shapes of one
    (tiny-lm@16x64,tiny-lm@64x32) have equally many parameters, and are ranked together too."""
    rates: tuple[float, ...] = number((1e-3, 3e-3, 1e-2, 3e-2), above(0))
    seed: int = number(0, SEED)
    """The first seed."""


@dataclass(frozen=True, kw_only=True)
class OfRecipe(Arms):
    """Which layer memory? It, its rivals and pairs of both, each at the best of as many learning
    rates, on source code and on a text of yours: the questions that layermem's pages answer."""

    usual = ("tokens",)
    variants: str = _RECIPE
    rates: tuple[float, ...] = number((2.5e-3, 5e-3, 1e-2, 2e-2), above(0))
    seed: int = number(0, SEED)
    """The first seed."""
    ask: tuple[str, ...] = _ASKED
    margin: float | None = number(0.01, above(0))
    text: str | None = None
    """A text of yours, as in --data.source of `layermem train`; None: source code alone."""
    held_out: str | None = None
    """Validation text of --text, at least 1 MB; None: a share of it."""
    lengths: tuple[int, ...] = number((1600,), at_least(10))
    """Training steps."""
    compile: bool = False
    """Whether models are compiled with torch.compile, which takes a C++ compiler."""


@dataclass(frozen=True, kw_only=True)
class OfPaper(Carrying):
    """Reproduce a table or figure of the paper; `layermem list studies` shows where they stand."""

    name: tyro.conf.Positional[str]
    """paper/ and its fixed name (paper/table7, paper/fig4, paper/prosqa)."""
    scale: Scale = "tiny"
    """Size of the runs: "tiny" for CPUs, "small" for one GPU, "paper" exactly as in the paper."""
    records: tuple[str, ...] = ()
    """Records of evaluation tasks (tables 1 and 4 to 6), as for layermem eval."""
    without: tuple[str, ...] = ()
    """Evaluation tasks that are left out, of the averages too (MultiRC, WiC)."""


@dataclass(frozen=True, kw_only=True)
class OfRetrofit(StartingRun, Carrying):
    """Does layer memory pay on a model? Go on training it in several ways on the same data:
    plainly, with LoRA, with routers alone (one for keys and values, or one for each), with memory
    and all weights; each at its best learning rate.

    layermem study retrofit MODEL [OPTIONS]: every other option is a field of the runs' config, as
    in `layermem train --host.model MODEL`.
    """

    usual = ("tokens", "time")
    preset: tyro.conf.Suppress[str] = ""
    ways: tuple[str, ...] = ("plain", "lora", "routers", "apart", "all")
    """What is compared: plain, continued training without memory, and one more at least."""
    rates: tuple[float, ...] = number((5e-5, 2e-4, 1e-3), above(0))
    """Learning rates that every way tries, but routers alone."""
    router_rates: tuple[float, ...] = number((1e-3, 5e-3, 2e-2), above(0))
    """Learning rates that routers alone try."""


@dataclass(frozen=True, kw_only=True)
class OfPlugin(Carrying):
    """Carry out a study of a plugin."""

    name: tyro.conf.Positional[str]
    """Its name: `layermem list studies` shows them."""


def parse(args: Sequence[str]) -> Any:
    """Return the options of a study, an instance of its dataclass."""
    from layermem_bench.studies.definition import names

    name = args[0] if args and not args[0].startswith("-") else ""
    if name == "retrofit":
        has_model = args[1:] and not args[1].startswith("-")
        if not (has_model or {"--help", "-h"} & {*args}):
            raise ValueError("name a model: layermem study retrofit MODEL [OPTIONS]")
        args = ["--host.model", *args[1:]] if has_model else args[1:]
        return read_options(OfRetrofit, "study retrofit", args)
    if name == "recipe":
        return read_options(OfRecipe, "study recipe", args[1:])
    kind: type[Any] = OfPreset
    if name.startswith("paper/"):
        kind = OfPaper
    elif "," in name or "@" in name:
        kind = OfBoards
    elif name in names():
        kind = OfPlugin
    elif not name and {"--help", "-h"} & {*args}:
        kind = Carrying
    return read_options(kind, "study", args)


def study_of(options: Any) -> "Study":
    """Return the study that was asked for."""
    from layermem_bench.studies import boards, definition

    if isinstance(options, OfPaper):
        return _artefact(options)
    if isinstance(options, OfPlugin):
        asked = definition.get_study(options.name)
        first, count = asked.seeds[0], options.seeds
        seeds = asked.seeds if count is None else tuple(range(first, first + count))
        return replace(asked, seeds=seeds, conditions=options.conditions or asked.conditions)
    count = options.seeds or (8 if getattr(options, "ask", ()) else 5)
    seeds = tuple(range(options.seed, options.seed + count))
    conditions = options.conditions or options.usual
    if isinstance(options, OfRetrofit):
        run = resolve_run(options)
        run = replace(run, log_every=max(1, run.max_steps // 50))
        rates = options.rates, options.router_rates
        return boards.study_of_retrofit(run, *rates, seeds, conditions, options.ways)
    if isinstance(options, OfPreset):
        of = [boards.board_of(resolve_run(options), options.variants)]
    elif isinstance(options, OfRecipe):
        texts = options.text, options.held_out
        of = boards.boards_of_recipe(options.variants, *texts, options.lengths, options.compile)
    else:
        of = boards.open_boards(options.boards.split(","), options.variants)
    of, asks = [replace(each, rates=options.rates) for each in of], options.ask
    asked = boards.study_of_variants(of, seeds, conditions)
    if isinstance(options, OfRecipe):
        asked = replace(asked, name="recipe", title="Which layer memory")
        arms = {arm.name for arm in of[0].arms}
        asks = tuple(each for each in asks if each not in _ASKED or {*each.split()[::2]} <= arms)
    if options.margin is not None and not asks:
        raise ValueError("--margin is for --ask: say what the study is to tell")
    return replace(asked, questions=boards.questions_of(asks, asked, options.margin))


def _artefact(options: OfPaper) -> "Study":
    from layermem_bench.paper import check_artefact, get_artefact

    if options.conditions:
        raise ValueError("--conditions: an artefact of the paper has its own; leave them out")
    name = options.name.removeprefix("paper/")
    asked = get_artefact(name, options.scale, options.seeds, options.records, options.without)
    check_artefact(asked, options.records, dry_run=options.dry_run)
    return asked


def study(options: Any, command: str) -> None:
    """Train what is missing, print the tables of results, and write the page about them; or say
    what that would take."""
    asked = study_of(options)
    if options.dry_run:
        from layermem_bench.studies.estimates import estimate

        show_estimates(estimate(asked, options.out))
        return
    from layermem_bench.studies.carrying_out import carry_out, result_folder

    result, failure = carry_out(asked, options.out, command, executor_of(options))
    show_result(result, result_folder(asked, options.out))
    if failure or result.missing:
        raise RuntimeError(failure or f"{asked.name} is not whole: {result.missing}")
