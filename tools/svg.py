"""Draws two kinds of diagrams as SVG: boxes with arrows between them, and lanes with arrows from
one to another, which show a sequence of messages or the transitions of a state machine.

Invariant: a drawing has its own background and two sets of colours, of which the reader's setting
for light or dark picks one. It loads nothing, so it may stand on any page. Widths of texts are
estimated, since no fonts are read: the same input gives the same bytes on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

LETTER_PX = 8.1
SMALL_LETTER_PX = 6.7
"""Mean width of a letter at 14 and at 12 pixels, rounded up."""
LINE_PX = 17
BOX_PADDING_PX = 14
LANE_GAP_PX = 40
ROW_PX = 44
MARGIN_PX = 16

STYLE = """
  .paper{fill:#fff}.box{fill:#eef2fb;stroke:#3f51b5;stroke-width:1.5}
  .group{fill:#f7f7f9;stroke:#9aa0ac}.lane{stroke:#9aa0ac;stroke-dasharray:3 4}
  .arrow{stroke:#37474f;stroke-width:1.5;fill:none}.thick{stroke-width:3}
  .dashed{stroke-dasharray:6 4}.head{fill:#37474f}
  text{font-family:system-ui,Roboto,Helvetica,Arial,sans-serif;font-size:14px;fill:#1c2330}
  .small{font-size:12px;fill:#37474f}
  .label{paint-order:stroke;stroke:#fff;stroke-width:5px}
  @media (prefers-color-scheme:dark){
    .paper{fill:#1e2129}.box{fill:#2b3350;stroke:#8c9eff}.group{fill:#252932;stroke:#6b7280}
    .lane{stroke:#6b7280}.arrow{stroke:#cfd8dc}.head{fill:#cfd8dc}
    text{fill:#eceff4}.small{fill:#cfd8dc}.label{stroke:#1e2129}
  }
"""


@dataclass(frozen=True, slots=True)
class Box:
    """`lines` in a rectangle whose centre is at `x`, `y`; a caller from outside is round."""

    name: str
    lines: tuple[str, ...]
    x: float
    y: float
    round: bool = False

    @property
    def half_width(self) -> float:
        return max(len(line) for line in self.lines) * LETTER_PX / 2 + BOX_PADDING_PX

    @property
    def half_height(self) -> float:
        return len(self.lines) * LINE_PX / 2 + BOX_PADDING_PX * 0.7


@dataclass(frozen=True, slots=True)
class Group:
    """A frame around the boxes of these names, with a title at its top."""

    title: str
    boxes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Arrow:
    """From one box or lane to another. `label` stands above the middle, `lift` pixels higher;
    `shift` moves the whole arrow downwards, where two run beside each other."""

    start: str
    end: str
    label: str = ""
    thick: bool = False
    dashed: bool = False
    shift: float = 0.0
    lift: float = 0.0


@dataclass(frozen=True, slots=True)
class BoxDiagram:
    """`alt`: what the drawing shows, for those who cannot see it."""

    alt: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    groups: tuple[Group, ...] = ()

    def svg(self) -> str:
        by_name = {box.name: box for box in self.boxes}
        frames = [_frame(group, [by_name[name] for name in group.boxes]) for group in self.groups]
        right = max([b.x + b.half_width for b in self.boxes] + [f.right for f in frames])
        bottom = max([b.y + b.half_height for b in self.boxes] + [f.bottom for f in frames])
        parts = [frame.svg() for frame in frames]
        parts += [_box(box) for box in self.boxes]
        for arrow in self.arrows:
            parts += _between(by_name[arrow.start], by_name[arrow.end], arrow)
        return _page(self.alt, right + MARGIN_PX, bottom + MARGIN_PX, parts)


START = "start"
END = "end"
"""Lanes of a state machine's first and last transition: drawn as a dot at the other end."""


@dataclass(frozen=True, slots=True)
class LaneDiagram:
    """A lane for each name of `lanes`, and the arrows from top to bottom. An arrow from START or to
    END has a dot there; one from a lane to itself is a loop."""

    alt: str
    lanes: tuple[str, ...]
    arrows: tuple[Arrow, ...]

    def svg(self) -> str:
        xs = dict(zip(self.lanes, self._places(), strict=True))
        top = MARGIN_PX + LINE_PX + 2 * BOX_PADDING_PX * 0.7
        bottom = top + ROW_PX * (len(self.arrows) + 0.4)
        heads = [Box(name, (name,), xs[name], (MARGIN_PX + top) / 2) for name in self.lanes]
        parts = [_line(head.x, top, head.x, bottom, "lane") for head in heads]
        parts += [_box(head) for head in heads]
        right = max(head.x + head.half_width for head in heads)
        for row, arrow in enumerate(self.arrows, start=1):
            drawn, reach = self._arrow(arrow, xs, top + ROW_PX * row)
            parts += drawn
            right = max(right, reach)
        return _page(self.alt, right + MARGIN_PX, bottom + MARGIN_PX, parts)

    def _places(self) -> Iterator[float]:
        """Centres of the lanes: wide enough for their names, and for the labels of arrows between
        neighbours and of loops."""
        x = MARGIN_PX + Box("", (self.lanes[0],), 0, 0).half_width
        if any(a.start == START and a.end == self.lanes[0] for a in self.arrows):
            x = max(x, 60.0)
        yield x
        for place, (left, right) in enumerate(zip(self.lanes, self.lanes[1:], strict=False)):
            names = Box("", (left,), 0, 0).half_width + Box("", (right,), 0, 0).half_width
            need = names + LANE_GAP_PX
            for arrow in self.arrows:
                width = len(arrow.label) * SMALL_LETTER_PX
                if {arrow.start, arrow.end} == {left, right}:
                    need = max(need, width + 34)
                elif arrow.start == arrow.end == left or (arrow.start, arrow.end) in (
                    (START, right),
                    (left, END),
                ):
                    need = max(need, width + 66)
                elif START not in (arrow.start, arrow.end) and END not in (arrow.start, arrow.end):
                    ends = sorted(self.lanes.index(name) for name in (arrow.start, arrow.end))
                    if ends[0] <= place < ends[1]:
                        need = max(need, (width + 34) / (ends[1] - ends[0]))
            x += need
            yield x

    def _arrow(self, arrow: Arrow, xs: dict[str, float], y: float) -> tuple[list[str], float]:
        """The parts of one arrow, and how far to the right they reach."""
        if arrow.start == START:
            x = xs[arrow.end]
            dot = f'<circle class="head" cx="{_n(x - 46)}" cy="{_n(y)}" r="6"/>'
            label = _text(arrow.label, x - 40, y - 8, "small label", "start") if arrow.label else ""
            return [dot, *_arrow_line(x - 40, y, x - 2, y, arrow), label], x
        x = xs[arrow.start]
        if arrow.end == END:
            ring = (
                f'<circle class="arrow" cx="{_n(x + 50)}" cy="{_n(y)}" r="8"/>'
                f'<circle class="head" cx="{_n(x + 50)}" cy="{_n(y)}" r="4"/>'
            )
            width = len(arrow.label) * SMALL_LETTER_PX
            label = _text(arrow.label, x + 6, y - 12, "small label", "start") if arrow.label else ""
            return [ring, *_arrow_line(x + 2, y, x + 40, y, arrow), label], x + max(60, width)
        if arrow.start == arrow.end:
            loop = f"M{_n(x + 2)} {_n(y - 10)} h24 v18 h-18"
            width = len(arrow.label) * SMALL_LETTER_PX
            parts = [
                f'<path class="{_classes(arrow)}" d="{loop}"/>',
                _head(x + 2, y + 8, -1, 0),
                _text(arrow.label, x + 34, y + 4, "small label", "start"),
            ]
            return parts, x + 34 + width
        x2 = xs[arrow.end]
        side = 2 if x2 > x else -2
        middle = (x + x2) / 2
        width = len(arrow.label) * SMALL_LETTER_PX
        parts = [
            *_arrow_line(x + side, y, x2 - side, y, arrow),
            _text(arrow.label, middle, y - 7, "small label", "middle"),
        ]
        return parts, middle + width / 2


@dataclass(frozen=True, slots=True)
class _Frame:
    title: str
    left: float
    top: float
    right: float
    bottom: float

    def svg(self) -> str:
        width = self.right - self.left
        height = self.bottom - self.top
        rect = (
            f'<rect class="group" x="{_n(self.left)}" y="{_n(self.top)}" width="{_n(width)}"'
            f' height="{_n(height)}" rx="8"/>'
        )
        return rect + _text(self.title, self.left + 12, self.top + 20, "small", "start")


def _frame(group: Group, boxes: Sequence[Box]) -> _Frame:
    return _Frame(
        title=group.title,
        left=min(box.x - box.half_width for box in boxes) - 18,
        top=min(box.y - box.half_height for box in boxes) - 32,
        right=max(box.x + box.half_width for box in boxes) + 18,
        bottom=max(box.y + box.half_height for box in boxes) + 18,
    )


def _box(box: Box) -> str:
    radius = box.half_height if box.round else 6
    rect = (
        f'<rect class="box" x="{_n(box.x - box.half_width)}" y="{_n(box.y - box.half_height)}"'
        f' width="{_n(2 * box.half_width)}" height="{_n(2 * box.half_height)}" rx="{_n(radius)}"/>'
    )
    first = box.y - (len(box.lines) - 1) * LINE_PX / 2 + 5
    lines = (
        _text(line, box.x, first + LINE_PX * number, "small" if number else "", "middle")
        for number, line in enumerate(box.lines)
    )
    return rect + "".join(lines)


def _between(start: Box, end: Box, arrow: Arrow) -> list[str]:
    """A straight arrow from edge to edge, along the axis on which the boxes are further apart."""
    if abs(end.x - start.x) >= abs(end.y - start.y):
        sign = 1 if end.x > start.x else -1
        x1 = start.x + sign * start.half_width
        x2 = end.x - sign * (end.half_width + 1)
        y1 = start.y + arrow.shift
        y2 = end.y + arrow.shift
        label = _text(arrow.label, (x1 + x2) / 2, (y1 + y2) / 2 - 8 - arrow.lift, "small", "middle")
    else:
        sign = 1 if end.y > start.y else -1
        x1 = start.x + arrow.shift
        x2 = end.x + arrow.shift
        y1 = start.y + sign * start.half_height
        y2 = end.y - sign * (end.half_height + 1)
        label = _text(arrow.label, (x1 + x2) / 2 + 8, (y1 + y2) / 2 + 4, "small", "start")
    return [*_arrow_line(x1, y1, x2, y2, arrow), label if arrow.label else ""]


def _arrow_line(x1: float, y1: float, x2: float, y2: float, arrow: Arrow) -> list[str]:
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    dx = (x2 - x1) / length
    dy = (y2 - y1) / length
    return [_line(x1, y1, x2 - 8 * dx, y2 - 8 * dy, _classes(arrow)), _head(x2, y2, dx, dy)]


def _classes(arrow: Arrow) -> str:
    return "arrow" + " thick" * arrow.thick + " dashed" * arrow.dashed


def _line(x1: float, y1: float, x2: float, y2: float, classes: str) -> str:
    return f'<line class="{classes}" x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}"/>'


def _head(x: float, y: float, dx: float, dy: float) -> str:
    """An arrow head with its point at `x`, `y`, in the direction `dx`, `dy` of length 1."""
    back_x = x - 10 * dx
    back_y = y - 10 * dy
    points = (
        (x, y),
        (back_x - 5 * dy, back_y + 5 * dx),
        (back_x + 5 * dy, back_y - 5 * dx),
    )
    return f'<polygon class="head" points="{" ".join(f"{_n(a)},{_n(b)}" for a, b in points)}"/>'


def _text(words: str, x: float, y: float, classes: str, anchor: str) -> str:
    named = f' class="{classes}"' if classes else ""
    return f'<text{named} x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}">{escape(words)}</text>'


def _page(alt: str, width: float, height: float, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {_n(width)} {_n(height)}" width="{_n(width)}" height="{_n(height)}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(alt)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{_n(width)}" height="{_n(height)}" rx="8"/>',
        *(part for part in parts if part),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _n(number: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{number:.1f}".removesuffix(".0")
