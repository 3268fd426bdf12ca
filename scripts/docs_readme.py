"""The hook that mkdocs.yml names: the repository's README becomes a page of the site, and links to it lead there.

The README stays the one place of the measured tables. Pages link to it as ``../README.md``, which is right in a
checkout; README's own pictures and links start with ``docs/``, which the site does not have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGE = "readme.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README to the site's pages."""
    text = (Path(config.config_file_path).parent / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, PAGE, content=text.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to the README of a checkout lead to the page made of it."""
    return markdown.replace("](../README.md", f"]({PAGE}")
