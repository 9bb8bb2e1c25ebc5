"""mkdocs hook: the table of settings comes from the schema, so that it cannot fall behind."""

from typing import Any

from pydantic import BaseModel

from diversed.settings import Settings

MARKER = "<!-- settings -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    return markdown.replace(MARKER, table()) if MARKER in markdown else markdown


def table() -> str:
    """Markdown: a heading and a table of name, default and meaning for each group of the schema."""

    def cell(value: Any) -> str:
        text = ",".join(map(str, value)) if isinstance(value, list) else value
        return "" if value is None else f"`{text}`"

    def row(name: str, default: Any, description: str | None) -> str:
        return f"| `{name}` | {cell(default)} | {description} |".replace("<task>", "`<task>`")

    head = "| name | default | meaning |\n|---|---|---|"
    defaults = Settings()
    general, groups = [head], []
    for name, field in Settings.model_fields.items():
        value = getattr(defaults, name)
        if isinstance(value, BaseModel):
            rows = [
                row(f"{name}.{inner}", getattr(value, inner), inner_field.description)
                for inner, inner_field in type(value).model_fields.items()
            ]
            groups.append(f"### {name}\n\n{type(value).__doc__}\n\n" + "\n".join([head, *rows]))
        else:
            general.append(row(name, field.default, field.description))
    return "\n\n".join(["### general\n\n" + "\n".join(general), *groups])
