"""The values part as bars: how many times as long as natively, on a logarithmic axis."""

import html
import math

COLOURS = {"fencefs": "#0072b2", "passthrough_hp": "#e69f00", "mergerfs": "#999999"}
LEAST, MOST = 0.05, 50
MARKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
LEFT, WIDTH, RIGHT, BAR, GAP, TOP = 170, 440, 60, 7, 7, 50


def x_of(ratio):
    share = math.log(min(max(ratio, LEAST), MOST) / LEAST) / math.log(MOST / LEAST)
    return LEFT + share * WIDTH


def panel(kind, measured, top):
    """One filesystem's bars, from `top` down: the lines of SVG, and where they end."""
    shown = [name for name in COLOURS if any(name in figures for figures in measured["rows"].values())]
    row_height = len(shown) * BAR + GAP
    bottom = top + 16 + row_height * len(measured["rows"])
    out = [f'<text x="{LEFT}" y="{top}" font-size="13">{html.escape(kind)}</text>']
    for mark in MARKS:
        colour = "#000000" if mark == 1 else "#dddddd"
        out.append(f'<line x1="{x_of(mark):.1f}" x2="{x_of(mark):.1f}" y1="{top + 8}" y2="{bottom}" stroke="{colour}"/>'
                   f'<text x="{x_of(mark):.1f}" y="{bottom + 14}" text-anchor="middle">{mark:g}</text>')
    y = top + 14
    for row, figures in measured["rows"].items():
        out.append(f'<text x="{LEFT - 8}" y="{y + len(shown) * BAR / 2 + 4:.1f}" text-anchor="end">{html.escape(row)}</text>')
        for name in shown:
            if name in figures:
                ratio = figures[name][0] / figures["native"][0]
                start, end = sorted((x_of(1), x_of(ratio)))
                out.append(f'<rect x="{start:.1f}" y="{y}" width="{max(end - start, 1):.1f}" height="{BAR - 1}" fill="{COLOURS[name]}"/>')
                if name == "fencefs":
                    out.append(f'<text x="{LEFT + WIDTH + 8}" y="{y + 7}" fill="{COLOURS[name]}">{ratio:.2f}</text>')
            y += BAR
        y += GAP
    return out, bottom + 40


def draw(by_kind, path):
    body, top = [], TOP
    for kind, measured in by_kind.items():
        lines, top = panel(kind, measured, top)
        body += lines
    width = LEFT + WIDTH + RIGHT
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" font-family="sans-serif" font-size="11">',
           f'<rect width="{width}" height="{top}" fill="white"/>',
           f'<text x="{LEFT}" y="18" font-size="14">Times native, median of rounds (left is faster)</text>']
    x = LEFT
    for name, colour in COLOURS.items():
        out.append(f'<rect x="{x}" y="24" width="9" height="9" fill="{colour}"/><text x="{x + 13}" y="33">{name}</text>')
        x += 110
    with open(path, "w", encoding="ascii") as svg:
        svg.write("\n".join([*out, *body, "</svg>", ""]))
