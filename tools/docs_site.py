"""What ``mkdocs.yml`` needs beside its plugins.

The reference of the commands, and a site that fetches nothing.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

COMMANDS = "<!-- every command of dagster-ckpt -->"
_FETCHED = re.compile(
    r"""<(?:script|img|iframe)[^>]+src="?https?:|<link[^>]+rel="?(?:stylesheet|preconnect)"?[^>]+https?:"""
)


def commands(main: click.Group) -> str:
    """The commands of the command line, as their own ``--help`` tells them."""
    found = []
    group = click.Context(main, info_name="dagster-ckpt", **main.context_settings)
    for name in main.list_commands(group):
        command = main.get_command(group, name)
        if command is None:
            raise LookupError(name)
        context = click.Context(command, group, name, max_content_width=100)
        found.append(f"## {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(found)


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Put the commands in their place."""
    del kwargs
    if COMMANDS not in markdown:
        return markdown
    from dagster_ckpt.cli import main  # noqa: PLC0415 - takes a second, and only one page needs it

    return markdown.replace(COMMANDS, commands(main))


def on_post_build(config: Any, **kwargs: Any) -> None:
    """Refuse a site that would fetch anything from another host."""
    del kwargs
    for page in Path(config["site_dir"]).rglob("*.html"):
        found = _FETCHED.search(page.read_text(encoding="utf-8"))
        if found is not None:
            raise RuntimeError(f"{page} fetches from another host: {found[0]}")
