"""What a page is made of, and how each piece is written as HTML and as Markdown. Pieces hold plain text: the writers
escape it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

from diversed.evaluation.page_figures import Picture

__all__ = ["Block", "Bullets", "Cell", "Contents", "Heading", "Pictures", "Prose", "Row", "Table", "html", "markdown"]


@dataclass(frozen=True, slots=True)
class Heading:
    text: str
    level: int = 2
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Contents:
    """Links to all headings that have an anchor."""


@dataclass(frozen=True, slots=True)
class Prose:
    """A paragraph, or an item of a list: what stands in bold, then the words, then a command as it is typed."""

    text: str
    lead: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class Bullets:
    items: list[Prose]


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    interval: str = ""
    is_words: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    label: str
    cells: list[Cell]
    kind: str = ""  # "diversed", "published"
    first: bool = True  # of its rule


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    note: str  # whose numbers these are
    columns: list[str]  # the first is that of the labels
    rows: list[Row]
    groups: list[tuple[str, int]] = field(default_factory=list)  # heads over so many columns each


@dataclass(frozen=True, slots=True)
class Pictures:
    """Drawn only where they are shown."""

    pictures: Callable[[], list[Picture]]
    keys: Callable[[], list[tuple[str, str]]] = list  # names and swatches


Block = Heading | Contents | Prose | Bullets | Table | Pictures


# -- HTML ----------------------------------------------------------------------------------------------------------


def html(block: Block, blocks: Sequence[Block]) -> str:
    """One block of the page that consists of `blocks`."""
    match block:
        case Heading(text, level, anchor):
            return f"<h{level}" + (f' id="{escape(anchor)}"' if anchor else "") + f">{escape(text)}</h{level}>"
        case Contents():
            headings = [other for other in blocks if isinstance(other, Heading) and other.anchor]
            links = "".join(f'<li><a href="#{escape(item.anchor)}">{escape(item.text)}</a></li>' for item in headings)
            return f"<nav><ul>{links}</ul></nav>"
        case Prose():
            return f"<p>{_html_prose(block)}</p>"
        case Bullets(items):
            return "<ul>" + "".join(f"<li>{_html_prose(item)}</li>" for item in items) + "</ul>"
        case Table():
            return _html_table(block)
        case Pictures(pictures, keys):
            named = "".join(f"<li>{svg}{escape(name)}</li>" for name, svg in keys())
            panels = "".join(
                f"<figure><figcaption>{escape(picture.caption)}</figcaption>{picture.svg}</figure>"
                for picture in pictures()
            )
            return (f'<ul class="keys">{named}</ul>' if named else "") + f'<div class="panels">{panels}</div>'


def _html_prose(prose: Prose) -> str:
    lead = f"<b>{escape(prose.lead)}</b>" if prose.lead else ""
    return lead + escape(prose.text) + (f" <code>{escape(prose.command)}</code>" if prose.command else "")


def _html_table(table: Table) -> str:
    labels, *columns = table.columns
    are_words = [cell.is_words for cell in table.rows[0].cells] if table.rows else [False] * len(columns)
    heads = "".join(
        f'<th scope="col"{_words(is_words)}>{escape(title)}</th>'
        for title, is_words in zip(columns, are_words, strict=True)
    )
    if table.groups:
        over = "".join(f'<th scope="colgroup" colspan="{span}">{escape(title)}</th>' for title, span in table.groups)
        head = f'<tr><th scope="col" rowspan="2">{escape(labels)}</th>{over}</tr><tr>{heads}</tr>'
    else:
        head = f'<tr><th scope="col">{escape(labels)}</th>{heads}</tr>'
    body = []
    for row in table.rows:
        kinds = " ".join(filter(None, (row.kind, "first" if row.first else "")))
        cells = "".join(
            f"<td{_words(cell.is_words)}>"
            + escape(cell.text)
            + (f"<small>{escape(cell.interval)}</small>" if cell.interval else "")
            + "</td>"
            for cell in row.cells
        )
        body.append(f'<tr class="{kinds}"><th scope="row">{escape(row.label)}</th>{cells}</tr>')
    caption = f"<figcaption><b>{escape(table.title)}</b> ({escape(table.note)})</figcaption>"
    rows = "\n".join(body)
    box = f'<div class="box" tabindex="0"><table><thead>{head}</thead><tbody>\n{rows}\n</tbody></table></div>'
    return f"<figure>{caption}{box}</figure>"


def _words(is_words: bool) -> str:
    return ' class="words"' if is_words else ""


# -- Markdown ------------------------------------------------------------------------------------------------------


def markdown(block: Block) -> str:
    """Empty for what Markdown does not have."""
    match block:
        case Heading(text, level, _):
            return "#" * level + f" {_plain(text)}"
        case Prose():
            return _markdown_prose(block)
        case Bullets(items):
            return "\n".join(f"- {_markdown_prose(item)}" for item in items)
        case Table():
            return _markdown_table(block)
        case _:
            return ""


def _markdown_prose(prose: Prose) -> str:
    lead = f"**{_plain(prose.lead)}**" if prose.lead else ""
    # Two backticks may hold one inside.
    return lead + _plain(prose.text) + (f" `` {' '.join(prose.command.split())} ``" if prose.command else "")


def _markdown_table(table: Table) -> str:
    over = [title for title, span in table.groups for _ in range(span)] or [""] * (len(table.columns) - 1)
    titles = [f"{group}: {title}" if group else title for group, title in zip(over, table.columns[1:], strict=True)]
    lines = [
        f"**{_plain(table.title)}** ({_plain(table.note)})",
        "",
        "| " + " | ".join(map(_plain, [table.columns[0], *titles])) + " |",
        "|---|" + "--:|" * len(titles),
    ]
    marks = {"diversed": "**", "published": "*"}
    for row in table.rows:
        mark = marks.get(row.kind, "")
        cells = [
            _plain(cell.text) + (f"<br><sub>{_plain(cell.interval)}</sub>" if cell.interval else "")
            for cell in row.cells
        ]
        lines.append(f"| {mark}{_plain(row.label)}{mark} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    marked = "".join(f"\\{letter}" if letter in "\\`*_[]|#~" else letter for letter in " ".join(text.split()))
    spaces = " " * text.startswith(" ")
    return spaces + marked.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
