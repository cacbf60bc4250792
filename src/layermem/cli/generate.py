"""`layermem models generate`: text from a trained model, for one prompt or many."""

import json
import logging
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from layermem.serving.settings import GenerationSettings

if TYPE_CHECKING:
    from layermem.serving.output_file import OutputFile
    from layermem.serving.prompts import Prompt, RawPrompt

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Generate(GenerationSettings):
    """Continue prompts with a trained model: ours, or any decoder of Hugging Face.

    One prompt is continued on the screen as it is generated; several are written as JSON lines.
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

    def settings(self) -> GenerationSettings:
        """Return the options that say how prompts are continued."""
        names = [field.name for field in fields(GenerationSettings)]
        return GenerationSettings(**{name: getattr(self, name) for name in names})


def generate(options: Generate, command: str) -> None:
    """Continue prompts; speed and progress go to standard error."""
    from transformers.utils import logging as transformers_logging

    from layermem.analysis.checkpoints import open_checkpoints
    from layermem.serving.generation import batches
    from layermem.serving.output_file import OutputFile
    from layermem.serving.prompts import encode_prompts
    from layermem.serving.writing import describe

    transformers_logging.disable_progress_bar()
    raw, settings = _read(options), options.settings()
    (checkpoint,) = open_checkpoints([options.model])
    prompts = encode_prompts(checkpoint.tokenizer, raw, chat=options.chat)
    _check(checkpoint, prompts, settings)
    groups = batches(prompts, settings.batch_size)
    if options.out is None:
        _to_screen(checkpoint, groups, options)
        return
    # An adapter lies in a folder, so that the commit is its base's.
    commit = getattr(checkpoint.load_config(), "_commit_hash", None)
    own = commit if checkpoint.base is None else None
    about = describe(checkpoint.location, prompts, settings, options.dtype, own)
    if checkpoint.base is not None:
        about["base"] = describe(checkpoint.base, prompts, settings, options.dtype, commit)["model"]
    output = OutputFile(options.out, about, [[p.index for p in group] for group in groups])
    with output.locked():
        _to_file(checkpoint, groups, options, output)


def _read(options: Generate) -> "list[RawPrompt]":
    """Return the prompts of a file, of the command, or of standard input."""
    from layermem.serving.prompts import prompts_of_texts, read_prompts

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


def _check(checkpoint: Any, prompts: "list[Prompt]", settings: GenerationSettings) -> None:
    """Raise, before weights are read, if the model cannot continue a prompt."""
    from layermem.serving.prompts import check_prompts

    config: Any = checkpoint.load_config().get_text_config()
    longest = getattr(config, "max_position_embeddings", None)
    check_prompts(
        prompts,
        longest=longest if isinstance(longest, int) and longest > 0 else None,
        vocabulary=config.vocab_size,
        max_new_tokens=settings.max_new_tokens,
    )


def _load(checkpoint: Any, options: Generate) -> Any:
    from layermem.analysis.checkpoints import load_model
    from layermem.serving.generation import TextGenerator

    model = load_model(checkpoint, with_head=True, dtype=options.dtype)
    return TextGenerator(model, checkpoint.tokenizer, options.settings())


def _to_screen(checkpoint: Any, groups: "list[list[Prompt]]", options: Generate) -> None:
    from layermem.serving.writing import continue_all

    generator = _load(checkpoint, options)
    if len(groups) == 1 and len(groups[0]) == 1:

        def write(text: str) -> None:
            sys.stdout.write(text)
            sys.stdout.flush()

        streamed = options.num_beams == 1
        (done,) = generator.continue_batch(groups[0], write)
        write("\n" if streamed else f"{done.text}\n")
    else:
        for row in continue_all(generator, groups):
            sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
    logger.info("%s", generator.speed.describe())


def _to_file(
    checkpoint: Any, groups: "list[list[Prompt]]", options: Generate, output: "OutputFile"
) -> None:
    from rich.console import Console
    from rich.progress import Progress

    from layermem.serving.writing import continue_all

    pending, total = output.open(), sum(map(len, groups))
    if not pending:
        output.finish()
        logger.info("%s has all %d prompts already", output.path, total)
        return
    if output.rows:
        logger.info(
            "going on with %s: %d of %d prompts are done", output.part, len(output.rows), total
        )
    generator = _load(checkpoint, options)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("generating", total=total, completed=len(output.rows))
        continue_all(
            generator,
            groups,
            output=output,
            pending=pending,
            progress=lambda done: progress.advance(bar, done),
        )
    logger.info("wrote %s: %d prompts", output.path, total)
    logger.info("%s", generator.speed.describe())
