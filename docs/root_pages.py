"""Adds CHANGELOG.md and CONTRIBUTING.md to the site, and leads links to files to its map.

MkDocs reads pages from docs/ alone. In the repository a page may link to any file; on the site a
link to a page leads to that page, and one to another file to its row of the page "Every file".
``on_post_build`` fails the build if a page would load anything from another server.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Pages of the top folder, and their addresses on the site.
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
_UNBROKEN = re.compile(r" ± |\(p [=<] |% to \d")
# What a browser fetches by itself; a link that a reader may follow is no such thing.
_LOADED = re.compile(r"<(?:script|img|iframe|source)[^>]+src=\"?(?:https?:)?//[^>]+>")
_STYLES = re.compile(r"<link[^>]+rel=\"?(?:stylesheet|preconnect|preload)\"?[^>]*//[^>]+>")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the top folder (a hook of MkDocs)."""
    from mkdocs.structure.files import File

    for name, address in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, address, content=redirect_links(text, "")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Redirect the links of a page that lies in docs/ (a hook of MkDocs).

    Intervals and p-values are not broken over lines.
    """
    markdown = _UNBROKEN.sub(lambda match: match[0].replace(" ", "\N{NO-BREAK SPACE}"), markdown)
    if page.file.generated_by is not None:
        return markdown
    return redirect_links(markdown, posixpath.join("docs", posixpath.dirname(page.file.src_uri)))


def redirect_links(markdown: str, folder: str) -> str:
    """Return a page with links to files made links to the site's pages.

    ``folder`` holds the page in the repository. On the site docs/ is the top, and pages of the
    repository's top folder stand there too.
    """
    site_folder = posixpath.relpath(folder, "docs") if folder else "."

    def target(match: re.Match[str]) -> str:
        link, anchor = match[1], match[2] or ""
        if "://" in link or link.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, link))
        if path in PAGES:
            page = PAGES[path] + anchor
        elif path.startswith("docs/") and not path.endswith(".py"):
            page = path.removeprefix("docs/") + anchor
        else:
            page = f"files.md#{path}"
        return posixpath.relpath(page, site_folder)

    return _LINK.sub(target, markdown)


def on_post_build(config: Any) -> None:
    """Fail if a page loads a script, a style or an image from another server."""
    from mkdocs.exceptions import PluginError

    for page in sorted(Path(config["site_dir"]).rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        if loaded := _LOADED.search(text) or _STYLES.search(text):
            raise PluginError(f"{page} loads from another server: {loaded[0]}")
