"""The hook of mkdocs.yml: it adds pages of the site that are files of the repository's root.

So each of them remains one file. Pages link to it as ``../CHANGELOG.md``, which is right in a checkout; on the site the
link leads to the page. Links in the file itself start at the root.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

#: The file, and the page made of it, which lies in a folder of the site.
PAGES = {"CHANGELOG.md": "about/changelog.md", "CONTRIBUTING.md": "dev/contributing.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files to the site's pages."""
    for name, page in PAGES.items():
        text = (Path(config.config_file_path).parent / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text.replace("](docs/", "](../")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite links to these files as links to the pages made of them."""
    folder = posixpath.dirname(page.file.src_uri)
    for name, target in PAGES.items():
        to_page = posixpath.relpath(target, folder or ".")
        markdown = re.sub(rf"\]\((\.\./)+{re.escape(name)}", f"]({to_page}", markdown)
    return markdown
