"""What all reports are made of: one self-contained page, its tables and its charts.

A page needs nothing from elsewhere: the charts' library, Plotly's, is in it, which is most of its 5 MB. It is light or
dark as the reader's system is, and fits a phone.
"""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from tinygpt import files

COLORS = ("#3b82d6", "#e0752d", "#2aa876", "#b35bd6", "#c9a227", "#d64d6b")  # that are seen on white and on black
GREY, GRID = "#8b949e", "rgba(139,148,158,0.25)"


class Line(NamedTuple):
    """Of a chart.

    Attributes:
        name: in the legend.
        x, y: its points.
        mode: Plotly's, such as "lines" or "lines+markers".
        labels: what a reader who points at a point is told besides; none: nothing.
    """

    name: str
    x: Sequence[Any]
    y: Sequence[Any]
    mode: str = "lines"
    labels: Sequence[str] = ()


def write(path: Path, title: str, body: str) -> None:
    """Write a page, whole or not at all.

    Args:
        path: the file.
        title: in the browser's tab, plain text.
        body: HTML.
    """
    template = Template((Path(__file__).parent / "page.html").read_text(encoding="utf-8"))
    scripts = ""
    if 'class="plotly-graph-div"' in body:
        from plotly.offline import get_plotlyjs

        scripts = f"<script>{get_plotlyjs()}</script>"
    files.write_text(path, template.substitute(title=escape(title), scripts=scripts, body=body))


def section(title: str, *content: str) -> str:
    return f"<h2>{escape(title)}</h2>\n" + "\n".join(content)


def code(*texts: str) -> str:
    """Each as it is, to be copied."""
    return "\n".join(f"<pre>{escape(text)}</pre>" for text in texts)


def table(rows: Iterable[Sequence[Any]], head: Sequence[str] = ()) -> str:
    """A table, which scrolls by itself where it is too wide; a `Cell` is HTML, all else text, numbers at the right."""
    header = f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>" if head else ""
    lines = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="scroll"><table>{header}\n{lines}</table></div>'


class Cell(NamedTuple):
    """HTML of a table's cell, and its CSS class."""

    html: str
    kind: str = ""


def _cell(value: Any) -> str:
    if isinstance(value, Cell):
        return f'<td class="{value.kind}">{value.html}</td>'
    return f'<td class="{"number" if isinstance(value, int | float) else ""}">{escape(shown(value))}</td>'


def shown(value: Any) -> str:
    """A value as a reader wants it: four digits of a number, the thousands apart, as long as somebody would count."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if isinstance(value, int) or 1000 <= abs(value) < 1e12 else f"{value:.4g}"


def figure(title: str, content: Any, height: int = 280, wide: bool = False) -> str:
    """A figure of Plotly's, made to fit the page.

    Args:
        title: above it, plain text.
        content: the `plotly.graph_objects.Figure`, which is changed.
        height: in pixels.
        wide: over the whole page.
    """
    content.update_layout(
        template="none",
        height=height,
        margin={"l": 55, "r": 15, "t": content.layout.margin.t or 10, "b": 45},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": GREY, "size": 12, "family": "system-ui, sans-serif"},
        colorway=COLORS,
        dragmode=False,  # a finger on a chart scrolls the page
        hovermode="closest",
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        title=None,
    )
    content.update_xaxes(gridcolor=GRID, zeroline=False, linecolor=GRID, automargin=True, exponentformat="power")
    content.update_yaxes(gridcolor=GRID, zeroline=False, linecolor=GRID, automargin=True)
    html = content.to_html(
        full_html=False, include_plotlyjs=False, config={"displayModeBar": False, "responsive": True}
    )
    return f'<div class="chart{" wide" if wide else ""}"><h3>{escape(title)}</h3>{html}</div>'


def chart(title: str, lines: Sequence[Line], x: str, y: str, *, log_x: bool = False, wide: bool = False) -> str:
    """Lines over one axis.

    Args:
        title, x, y: of the chart and its axes.
        lines: at least one.
        log_x: a logarithmic axis.
        wide: over the whole page.
    """
    from plotly.graph_objects import Figure, Scatter

    content = Figure()
    for line in lines:
        told = "%{x}: %{y:.4g}" + ("<br>%{text}" if line.labels else "") + f"<extra>{escape(line.name)}</extra>"
        content.add_trace(
            Scatter(x=line.x, y=line.y, name=line.name, mode=line.mode, text=line.labels or None, hovertemplate=told)
        )
    content.update_xaxes(title=x, type="log" if log_x else "-")
    highest = max((value for line in lines for value in line.y), default=0)
    content.update_yaxes(title=y, tickformat="," if highest >= 1000 else "")
    content.update_layout(showlegend=len(lines) > 1)
    return figure(title, content, height=380 if wide else 280, wide=wide)
