"""Opens pages in a browser at a width, which windows cannot have if it is small, and asks them."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# A page says what it found by calling this.
TELL = "<script>const tell = (what) => parent.postMessage(JSON.stringify(what), '*');</script>"


def ask(page: Path, width: int, profile: Path):
    """Return what a page, in a file, tells in a frame of a width; the frame is a file beside it."""
    frame = page.with_name(f"frame-{page.name}")
    frame.write_text(
        f"<body><iframe src='{page.name}' width={width} height=900></iframe><script>"
        "addEventListener('message', ({ data }) => {"
        " if (typeof data !== 'string') return;"
        " const told = document.createElement('pre'); told.id = 'told'; told.textContent = data;"
        " document.body.replaceChildren(told); });</script>",
        encoding="utf-8",
    )
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
            *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
            *("--disable-sync", f"--user-data-dir={profile}", "--window-size=1400,900"),
            *("--virtual-time-budget=30000", "--dump-dom", frame.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=200,
    )
    found = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-3000:]
    return json.loads(html.unescape(found[1]))
