"""The pages: code runs, commands parse, links lead somewhere, the map has every file."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import tyro
import yaml
from scripts import ROOT, load_script
from transformers import LlamaConfig, LlamaForCausalLM

from layermem_bench import cli
from layermem_bench.config.typed_dicts import to_dict
from layermem_bench.presets import get_preset
from layermem_bench.text.tokenizers import load_tokenizer

PAGES = [
    path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
]
LANGUAGES = {"python", "bash", "text"}
# Its code and its commands are run by tests/test_plugins.py.
PLUGIN_PAGE = "docs/variants.md"
# Its cells are of a pretrained model: tests/real runs them.
NOTEBOOK = "docs/notebook.md"
# Where pages read a pretrained model that a command fetches; tests/real runs them on the real one.
PRETRAINED = {"README.md": "smollm2", "docs/retrofit.md": "my-base"}
# What a reader has time for: the most words of pages beside generated tables.
WORDS = {
    300: "glossary",
    500: "serving",
    600: "architecture index",
    700: "measuring recipe results/half_cache results/retrofit scale studies",
    800: "results results/costs",
    1_000: "results/paper results/tasks tasks variants",
    1_100: "mechanism",
    1_200: "evals family retrofit",
    1_300: "results/text",
    1_500: "training",
}
# The reference, what the notebook printed, the log and what GitHub asks for.
NOT_COUNTED = ("docs/api.md", "docs/notebook.md", "docs/results/tables.md", "docs/log/", "C")
WRITTEN = r"(?s)<!-- written by [^\n]*: begin -->.*?: end -->|<!--[^\n]*-->\n(?:\|[^\n]*\n)+"
file_map = load_script("docs/file_map.py")


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page, language=None):
    """Return (language, code) of each fenced block of a page."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", read(page), flags=re.DOTALL | re.MULTILINE)
    return [block for block in found if language in (None, block[0])]


def test_pages_are_as_long_as_readers_have_time_for():
    counted = [page for page in PAGES if not page.startswith(NOT_COUNTED)]
    words = {page: len(re.sub(WRITTEN, "", read(page)).split()) for page in counted}
    most = {f"docs/{name}.md": count for count, names in WORDS.items() for name in names.split()}
    most["README.md"] = 400
    assert set(words) == set(most)
    assert {page: count for page, count in words.items() if count > most[page]} == {}


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_its_language(page):
    assert read(page).count("```") == 2 * len(blocks(page))
    assert {language for language, _ in blocks(page)} <= LANGUAGES


def save_in_place_of_pretrained(folder):
    """Save a small LLaMA with random weights, and a tokenizer of bytes."""
    tokenizer = load_tokenizer("bytes")
    tokens = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = LlamaConfig(**tokens, bos_token_id=None, intermediate_size=128, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page, "python") and page not in (PLUGIN_PAGE, NOTEBOOK)],
)
def test_python_blocks_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if page in PRETRAINED:
        save_in_place_of_pretrained(PRETRAINED[page])
    names = {}
    for _, code in blocks(page, "python"):
        exec(compile(code, page, "exec"), names)


# Of commands that need files, models, runs or clusters options are read alone.
NEEDS = re.compile(
    r"FILE|path/to|runs/|records/|jsonl|-base|--text|resume|quickstart|prepare|--measure|"
    "srun|torchrun|launcher|retrofit|--tasks"
)


class ParsedError(BaseException):
    """Raised in place of running a command whose options were accepted."""


def shell_commands(page):
    """Return the commands of a page's bash blocks as lists of words."""
    for _, code in blocks(page, "bash"):
        for line in code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[-2:-1] == ["-c"]:
                words = shlex.split(words[-1])
            if words:
                yield words


def inline_commands(page):
    """Return the whole commands in a page's sentences; those of the log are of their time."""
    if page.startswith("docs/log/"):
        return
    for code in re.findall(r"(?<!`)`(layermem [^`]+)`(?!`)", read(page)):
        # Words in capitals stand for what a reader names; without options a command is a name.
        words = shlex.split(code)
        has_options = any(word.startswith("--") for word in words[:-1])
        if has_options and not re.search(r"\b[A-Z]{3,}\b|\.\.\.", code):
            yield words


@pytest.mark.parametrize(
    ("page", "words"),
    [
        pytest.param(page, words, id=shlex.join(words))
        for page in PAGES
        if page != PLUGIN_PAGE
        for words in (*shell_commands(page), *inline_commands(page))
    ],
)
def test_shell_commands_are_accepted(page, words, monkeypatch, tmp_path):
    parse = tyro.cli
    if words[:2] == ["layermem", "train"] and "/" in words[2]:
        # The folder of a run that goes on.
        (tmp_path / words[2]).mkdir(parents=True)
        config = yaml.safe_dump(to_dict(get_preset("tiny-lm")))
        (tmp_path / words[2] / "config.yaml").write_text(config, encoding="utf-8")
        monkeypatch.chdir(tmp_path)

    def parse_only(*args, **kwargs):
        parse(*args, **kwargs)
        raise ParsedError

    monkeypatch.setattr(tyro, "cli", parse_only)
    if "layermem" in words and "install" not in words:
        command = words[words.index("layermem") + 1 :]
        with pytest.raises(ParsedError):
            cli.main(command)
        if not NEEDS.search(shlex.join(words)):
            monkeypatch.undo()
            monkeypatch.chdir(tmp_path)
            is_dry = command[0] in ("study", "train") and "--dry-run" not in command
            cli.main([*command, *["--dry-run"] * is_dry])
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:", read("Makefile"), re.MULTILINE)
    elif words[0] == "python":
        assert (ROOT / words[1]).exists()
    else:
        known = ("pip", "pre-commit", "export", "ray")
        assert words[0] in known, "no test knows this command"


def heading_anchors(page):
    """Return the anchors of a page's headings, as GitHub and MkDocs name them."""
    headings = re.findall(r"^#+ (.+)$", read(page), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", read(page)):
        if "://" in link or link.startswith("mailto:"):
            continue
        target, _, anchor = link.partition("#")
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), link
        if anchor:
            assert anchor in heading_anchors(path.resolve().relative_to(ROOT)), link


def test_the_map_has_a_row_for_every_file_that_says_what_it_is():
    try:
        names = file_map.tracked_files()
    except subprocess.CalledProcessError:
        pytest.skip("not a git checkout: which files belong to the repository is not known")
    for name in names:
        description = file_map.describe(ROOT / name)
        assert description, f"{name}: begin it with one line that says what it is"
        if name.endswith(".py"):
            assert description.endswith("."), f"{name}: its first line is no full sentence"
    rows = re.findall(r'id="([^"]+)"', file_map.render(names))
    assert rows == sorted(names, key=lambda name: (Path(name).parent.parts, name))
