"""The hook that mkdocs.yml names: the repository's READMEs become pages of the site, and links to them lead there.

The README stays the one place of the measured tables. Pages link to it as ``../README.md``, which is right in a
checkout; README's own pictures and links start with ``docs/``, which the site does not have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

#: the README in both languages, and the pages made of it
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
    """Let links to the README of a checkout lead to the page made of it."""
    return markdown.replace("](../README.md", f"]({PAGES['README.md']}")
