"""What the pages show of a pretrained model runs on SmolLM2 135M as it stands there."""

import re
from pathlib import Path

import pytest
from forked import run_script

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "heading", "folder"),
    [
        ("README.md", "Memory for a pretrained model", "smollm2"),
        ("docs/retrofit.md", "From a model to an adapter", "my-base"),
    ],
)
def test_code_of_a_page_runs(page, heading, folder, smollm2_folder, tmp_path, monkeypatch):
    text = (ROOT / page).read_text(encoding="utf-8")
    section = re.search(rf"^## {heading}\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)[1]
    assert f"layermem models fetch smollm2-135m {folder}" in section
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert blocks
    monkeypatch.chdir(tmp_path)
    Path(folder).symlink_to(smollm2_folder)
    names = {}
    for code in blocks:
        exec(compile(code, page, "exec"), names)
    assert Path("my-routers", "routers.safetensors").is_file()


def test_the_notebook_runs(smollm2_folder, tmp_path):
    (tmp_path / "smollm2").symlink_to(smollm2_folder)
    script = ROOT / "docs" / "notebook_page.py"
    status, _, errors = run_script(script, [str(tmp_path)], folder=tmp_path)
    assert status == 0, errors[-3000:]
    page = (tmp_path / "notebook.md").read_text(encoding="utf-8")
    for shown in ("unchanged: True", "The capital of France is Paris.", "the same: True"):
        assert f"{shown}\n" in page
    after, before = map(
        float, re.search(r"held out: ([\d.]+) nats a token, before (.*)", page).groups()
    )
    assert after < before
    (figure,) = re.findall(r"\]\((notebook_\d+\.svg)\)", page)
    assert (tmp_path / figure).stat().st_size > 1000
