"""A hook of MkDocs: links that leave the folder of pages become plain text on the site.

In the repository they lead to sources and to the README; the site holds the pages alone.
"""

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?!adr/)([^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The page as the site shows it; MkDocs calls this for each page."""
    depth = page.file.src_uri.count("/")

    def as_text(link: re.Match[str]) -> str:
        if link[0].count("../") <= depth:
            return link[0]
        text, path = link[1], link[2].partition("#")[0]
        return text if text.strip("`") in path or path == "README.md" else f"{text} (`{path}`)"

    return _OUTSIDE.sub(as_text, markdown)
