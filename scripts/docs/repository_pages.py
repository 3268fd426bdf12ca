"""The hook of mkdocs.yml: it adds the repository's READMEs to the site as pages, and rewrites links to and in them.

So the README remains the only place of its tables. Pages link to it as ``../README.md``, which is right in a checkout
but not on the site; pictures and links in the README start with ``docs/``, which does not exist on the site.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

#: The README in each language, and the page made of it.
PAGES = {"README.md": "readme.md", "README_CN.md": "readme_cn.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the READMEs to the site's pages."""
    for name, page in PAGES.items():
        text = (Path(config.config_file_path).parent / name).read_text(encoding="utf-8").replace("](docs/", "](")
        for other, of_site in PAGES.items():
            text = text.replace(f"]({other})", f"]({of_site})")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Rewrite links to the README as links to the page made of it."""
    for up in ("../../", "../"):
        markdown = markdown.replace(f"]({up}README.md", f"]({up.removeprefix('../')}{PAGES['README.md']}")
    return markdown
