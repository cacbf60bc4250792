"""`layermem study`: arms side by side, seed by seed, as a table and a page.

layermem study tiny-lm --variants plain,lime                  variants on a preset
layermem study tiny-lm,aet-4,tiny-lm@16x64                    on several boards, on equal terms
layermem study paper/fig6 --scale tiny                        a table or figure of the paper
layermem study retrofit MODEL --data.source FILE              ways of going on training
layermem study recipe --text FILE                             which layer memory is the best one
layermem study NAME                                           a study of a plugin

`layermem train PRESET --seeds 0-2` is a study too: of one arm.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from layermem_base.number_ranges import above, at_least, between, number
from layermem_base.plugins import unknown_name
from layermem_bench.cli.options import read_options
from layermem_bench.cli.screen import screen, show_estimates, show_result
from layermem_bench.cli.starting_run import StartingRun, is_run_folder, resolve_run, with_base_run
from layermem_bench.results.study import Scale
from layermem_bench.study.executors import Launching
from layermem_bench.study.hosts import WAYS, Way, study_of_retrofit
from layermem_bench.study.recipe import ARMS

if TYPE_CHECKING:
    from layermem_bench.config.run import Run
    from layermem_bench.study.definition import Study

Conditions = tuple[Literal["tokens", "time", "parameters"], ...]


@dataclass(frozen=True, kw_only=True)
class Carrying(Launching):
    """How any study is carried out."""

    seeds: int | None = number(None, between(1, 1000))
    """Seeds, the same for every arm; None: 5 (of the paper at scale small 3, at scale paper 1)."""
    conditions: Conditions = ()
    """What is equal between the arms: tokens, time (an arm whose steps are faster gets more of
    them, a slower one fewer), parameters (the mlp is as wide as that takes). None given: tokens;
    of several boards all three, of retrofit tokens and time."""
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print which runs there are, which are recorded, and how long the others would take here;
    train nothing but some timed steps."""
    track: tuple[Literal["tensorboard", "trackio", "wandb"], ...] = ()
    """Trackers that get the metrics of every run (pip install layermem[track]); a board of the
    study is a project there, and its runs have their names."""
    runs: tuple[Path, ...] = ()
    """Further folders whose runs are used where they are the same."""
    out: Path = Path("runs")
    """Folder of new runs, OUT/BOARD/RUN, and of the result, OUT/studies/STUDY. Runs that it holds
    are used, whatever their folders are called."""

    def range_of_seeds(self, first: int = 0) -> range:
        """Return the seeds."""
        return range(first, first + (self.seeds or 5))


@dataclass(frozen=True, kw_only=True)
class Arms(Carrying):
    """Arms of variants and what they try."""

    variants: str = "plain,lime"
    """Variants, the first is what the others are compared with; options of one follow colons
    (lime:router=last:router_window=4). all: every variant, the plain decoder first."""
    rates: tuple[float, ...] = number((), above(0))
    """Learning rates to try with every arm on a seed kept for that; each then takes its best by
    validation loss. One alone is tried by none and taken by all. None given: all take the
    board's."""
    decays: tuple[float, ...] = number((), at_least(0))
    """Weight decays to try with every rate of --rates; each arm takes the best of all pairs. None
    given: all take the board's."""
    trials: int | None = number(None, at_least(2))
    """Settings that every arm tries, as many for each: learning rates between the lowest and the
    highest of --rates, and with each another one for the parameters that an arm adds, if it adds
    some. None: every rate of --rates, with the variants' own rates."""
    own_rates: tuple[float, float] = number((1e-3, 3e-2), above(0))
    """Lowest and highest learning rate of parameters that an arm adds, for --trials."""


@dataclass(frozen=True, kw_only=True)
class OfPreset(StartingRun, Arms):
    """Compare variants on a preset, or on the config of a run, seed by seed; ended runs are not run
    again, begun ones are resumed.

    Every other option is a field of the runs' config, as in `layermem train`.
    """

    keeps_variant = False
    variant: tyro.conf.Suppress[str] = "lime"

    def study(self) -> "Study":
        """Return the study."""
        from layermem_bench.study.boards import board_of, study_of_variants

        run = resolve_run(self)
        board = board_of(
            run,
            self.variants,
            self.rates,
            self.decays,
            trials=self.trials,
            own_rates=self.own_rates,
        )
        seeds = self.range_of_seeds(run.seed)
        return study_of_variants([board], seeds, self.conditions or ("tokens",))


@dataclass(frozen=True, kw_only=True)
class OfBoards(Arms):
    """Rank variants on several boards at equal tokens, equal training time and equal parameters;
    ended runs are not run again, begun ones are resumed."""

    boards: tyro.conf.Positional[str]
    """Boards, separated by commas: presets as `layermem train` takes them; recall is tiny-mqar.
    PRESET@LAYERSxWIDTH is a preset in another shape (tiny-lm@16x64,tiny-lm@64x32): those of one
    preset have equally many parameters, and are ranked together too."""

    rates: tuple[float, ...] = number((1e-3, 3e-3, 1e-2, 3e-2), above(0))
    """Learning rates to try with every arm on a seed kept for that, at equal tokens."""

    def study(self) -> "Study":
        """Return the study."""
        from layermem_bench.study.boards import open_boards, study_of_variants
        from layermem_bench.study.definition import ALL_CONDITIONS

        names = [name.strip() for name in self.boards.split(",") if name.strip()]
        boards = open_boards(
            names, self.variants, self.rates, self.decays, self.trials, self.own_rates
        )
        seeds = self.range_of_seeds()
        return study_of_variants(boards, seeds, self.conditions or ALL_CONDITIONS)


@dataclass(frozen=True, kw_only=True)
class OfPaper(Carrying):
    """Reproduce a table or figure of the paper; recorded runs are not run again. `layermem list
    studies` shows where all of them stand."""

    name: tyro.conf.Positional[str]
    """paper/ and its fixed name (paper/table7, paper/fig4, paper/prosqa)."""
    scale: Scale = "tiny"
    """Size of the runs: "tiny" for CPUs, "small" for one GPU, "paper" exactly as in the paper."""
    records: tuple[str, ...] = ()
    """Records of evaluation tasks (tables 1 and 4 to 6), as for layermem eval; a task without any
    is fetched from the hub."""
    without: tuple[str, ...] = ()
    """Evaluation tasks that are left out, as where there are no records of them (MultiRC, WiC);
    averages, the paper's too, are those of the other tasks then."""

    def study(self) -> "Study":
        """Return the study."""
        from layermem_bench.paper import get_artefact
        from layermem_bench.paper.evaluated import check_artefact, leave_out

        if self.conditions:
            raise ValueError("--conditions: an artefact of the paper has its own; leave them out")
        name = self.name.removeprefix("paper/")
        artefact = leave_out(get_artefact(name), self.without)
        study = artefact.study(name, self.scale, self.seeds, self.records)
        check_artefact(name, artefact, self.scale, self.records, dry_run=self.dry_run)
        return study


@dataclass(frozen=True, kw_only=True)
class OfRetrofit(StartingRun, Carrying):
    """Does layer memory pay on a model? Go on training it in several ways on the same data:
    plainly, with LoRA, with routers alone (one for keys and values, or one for each), with memory
    and all weights; each at its best learning rate.
    Ended runs are not run again, begun ones are resumed.

    layermem study retrofit MODEL [OPTIONS]: every other option is a field of the runs' config, as
    in `layermem train --host.model MODEL`.
    """

    preset: tyro.conf.Suppress[str] = ""
    ways: tuple[Way, ...] = tuple(WAYS)
    """What is compared: plain, continued training without memory, and one more at least."""
    rates: tuple[float, ...] = number((5e-5, 2e-4, 1e-3), above(0))
    """Learning rates that every way tries, but routers alone."""
    router_rates: tuple[float, ...] = number((1e-3, 5e-3, 2e-2), above(0))
    """Learning rates that routers alone try."""

    def study(self) -> "Study":
        """Return the study."""
        run = resolve_run(self)
        base = replace(run, log_every=max(1, run.max_steps // 50))
        seeds, conditions = self.range_of_seeds(run.seed), self.conditions or ("tokens", "time")
        return study_of_retrofit(base, self.rates, self.router_rates, seeds, conditions, self.ways)


@dataclass(frozen=True, kw_only=True)
class OfRecipe(Arms):
    """Which layer memory? Its settings, its rivals and pairs of both, on source code, on a text of
    yours and on arithmetic, in two widths and at two lengths, each arm with as many trials. Ended
    runs are not run again, begun ones are resumed."""

    variants: str = ",".join(ARMS)
    """Arms, as for a preset; the first is what the others are compared with."""
    rates: tuple[float, ...] = number((2e-3, 2e-2), above(0))
    """Lowest and highest learning rate of trials; without trials (--trials None) those that every
    arm tries, of which one alone is taken by all."""
    trials: int | None = number(4, at_least(2))
    """Settings that every arm tries on each board: learning rates, and with each another one for
    the parameters that an arm adds, if it adds some. None: every rate of --rates."""
    text: str | None = None
    """A text of yours, as in --data.source of `layermem train`; None: source code alone."""
    held_out: str | None = None
    """Its validation text, at least 1 MB; None: a share of the text."""
    widths: tuple[int, ...] = number((64, 128), at_least(8))
    """Widths of the models of 8 layers."""
    lengths: tuple[int, ...] = number((1600, 400), at_least(10))
    """Training steps of text."""
    code: bool = True
    """Whether the Python standard library's source code is one of the texts."""
    arithmetic: bool = True
    """Whether there is a board of arithmetic."""

    def study(self) -> "Study":
        """Return the study."""
        from layermem_bench.study.recipe import study_of_recipe

        texts: list[tuple[str, str, str | None]] = []
        if self.code:
            texts.append(("code", "stdlib", None))
        if self.text is not None:
            texts.append(("text", self.text, self.held_out))
        elif self.held_out is not None:
            raise ValueError("--held-out is the validation text of --text: name that too")
        return study_of_recipe(
            self.range_of_seeds(),
            self.conditions or ("tokens", "time", "parameters"),
            variants=self.variants,
            texts=texts,
            widths=self.widths,
            lengths=self.lengths,
            arithmetic=self.arithmetic,
            rates=self.rates,
            decays=self.decays,
            trials=self.trials,
            own_rates=self.own_rates,
        )


@dataclass(frozen=True, kw_only=True)
class OfPlugin(Carrying):
    """Carry out a study of a plugin; ended runs are not run again, begun ones are resumed."""

    name: tyro.conf.Positional[str]
    """Its name: `layermem list studies` shows them."""

    def study(self) -> "Study":
        """Return the study, with the seeds and conditions that were asked for."""
        from layermem_bench.study.definition import get_study

        study = get_study(self.name)
        if self.seeds is not None:
            first = study.seeds[0]
            study = replace(study, seeds=tuple(range(first, first + self.seeds)))
        return replace(study, conditions=self.conditions) if self.conditions else study


@dataclass(frozen=True, kw_only=True)
class AnyStudy(Carrying):
    """Compare arms, seed by seed; ended runs are not run again, begun ones are resumed.

    layermem study WHAT [OPTIONS], where WHAT is

    PRESET: variants on a preset, or on the config of a run;

    BOARD,BOARD or PRESET@LAYERSxWIDTH: variants on several boards, on equal terms;

    paper/NAME: a table or figure of the paper; NAME: a study of a plugin;

    retrofit MODEL: ways of going on training a model; recipe: which layer memory is the
    best one.

    Each has options of its own beside those below: layermem study PRESET --help shows
    --variants, --rates and --conditions.
    """


_BY_NAME: dict[str, type[Any]] = {"retrofit": OfRetrofit, "recipe": OfRecipe}


def parse(args: Sequence[str]) -> Any:
    """Return the options of a study, an instance of its dataclass."""
    name = args[0] if args and not args[0].startswith("-") else ""
    if name in _BY_NAME:
        from layermem_bench.study.definition import names as studies

        if name in studies():
            raise ValueError(
                f"layermem study {name} is a study of layermem, and a plugin has one of that name: "
                "rename its function"
            )
        args = args[1:]
        if name == "retrofit":
            args = ["--host.model", *args] if args and not args[0].startswith("-") else args
            base = with_base_run(OfRetrofit, "study retrofit", args)
            return read_options(OfRetrofit, "study retrofit", args, base)
        return read_options(_BY_NAME[name], f"study {name}", args)
    kind = _kind(name, args)
    if kind is OfPreset:
        default = with_base_run(OfPreset, "study", args)
        return read_options(OfPreset, "study", args, default)
    return read_options(kind, "study", args)


def _kind(name: str, args: Sequence[str]) -> type[Any]:
    """Return the options of a study by its name; raise where it is nearly that of another."""
    from layermem_bench.presets import names as presets
    from layermem_bench.study.definition import names as studies

    if name.startswith("paper/"):
        return OfPaper
    if "," in name or "@" in name:
        return OfBoards
    if name in studies():
        return OfPlugin
    if not name and {"--help", "-h"} & {*args}:
        return AnyStudy
    known = {*presets(), *(preset.removeprefix("tiny-") for preset in presets())}
    close = difflib.get_close_matches(name, [*studies(), *_BY_NAME], n=1, cutoff=0.8)
    if close and name not in known and not is_run_folder(name):
        raise unknown_name("study", name, close)
    return OfPreset


def study(options: Any, command: str) -> None:
    """Carry out a study, or say what it would take."""
    carry_out_and_show(options.study(), options, command)


def train_seeds(run: "Run", seeds: str, out: Path, dry_run: bool, command: str) -> None:
    """Train a run with several seeds (FIRST-LAST), one after the other: a study of one arm."""
    from layermem_bench.study.boards import as_named_arm, board_of_one, study_of_variants
    from layermem_bench.study.estimates import check_can_begin
    from layermem_bench.study.planning import name_in_folders

    if dry_run:
        check_can_begin(run)
    arm = run.variant
    if run.host.model is None:
        run = as_named_arm(run)
    named = re.fullmatch(r"(\d+)(?:-(\d+))?", seeds)
    of = range(int(named[1]), int(named[2] or named[1]) + 1) if named else range(0)
    if not of:
        raise ValueError(f"--seeds must be FIRST-LAST, such as 0-2, got {seeds}")
    asked = study_of_variants([board_of_one(run, arm)], of, ("tokens",))
    # A name of its own: the study of the preset's variants keeps its result.
    asked = replace(asked, name=f"{asked.name}-{name_in_folders(arm)}")
    carry_out_and_show(asked, Carrying(out=out, dry_run=dry_run), command)


def carry_out_and_show(asked: "Study", options: Carrying, command: str) -> None:
    """Train what is missing, print the tables of results, and write the page about them."""
    if options.track:
        boards = (
            replace(board, base=replace(board.base, track=options.track)) for board in asked.boards
        )
        asked = replace(asked, boards=tuple(boards))
    if options.dry_run:
        _estimate(asked, options)
        return
    from layermem_bench.study.carrying_out import carry_out, result_folder
    from layermem_bench.study.executors import executor_of

    result, failure = carry_out(asked, options.out, options.runs, command, executor_of(options))
    show_result(result, result_folder(asked, options.out))
    if failure:
        raise RuntimeError(failure)
    if result.missing:
        raise RuntimeError(f"{asked.name} is not whole: {result.missing}")


def _estimate(asked: "Study", options: Carrying) -> None:
    from layermem_bench.report.numbers import format_duration
    from layermem_bench.study.estimates import estimate

    boards = estimate(asked, options.out, options.runs)
    show_estimates(boards)
    runs = sum(each.trials + each.counting for each in boards)
    left = runs - sum(each.recorded for each in boards)
    hours = [each.hours for each in boards if each.hours is not None]
    about = f", about {format_duration(3600 * sum(hours))}" if len(hours) == len(boards) else ""
    to_come = f"{left} to come{about}"
    screen().print(f"{runs} runs, {to_come if left else 'nothing is left to train'}")
    if asked.tasks:
        tasks = f"{len(asked.tasks)} evaluation tasks ({', '.join(asked.tasks)})"
        screen().print(f"Then each model is asked {tasks}, for which no time is estimated.")
