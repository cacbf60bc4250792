"""What the pages show of a pretrained model runs on SmolLM2 135M as it stands there."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "heading", "folder"),
    [
        ("README.md", "Memory for a pretrained model, in ten lines", "smollm2"),
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
