"""Draws docs/flood.svg from the figures of the example `flood`: plot_flood.py AFTER.tsv BEFORE.tsv > flood.svg

Two panels over the size of a flood of exhausted keys: new callers that are rejected, and attackers that get a
fresh burst.
"""

import csv
import math
import sys

WIDTH, HEIGHT, LEFT, TOP = 380, 240, 60, 50
SERIES = [
    ("Tollgate", "token bucket 5/h", 0, "#0a7d4f"),
    ("Tollgate before, with floors", "token bucket 5/h", 1, "#c2410c"),
    ("LRU", "LRU, 5", 0, "#1d4ed8"),
    ("reject when full", "reject when full, 5", 0, "#6b7280"),
]


def read(path):
    with open(path, newline="") as file:
        return [row for row in csv.DictReader(file, delimiter="\t") if row["requests per key"] not in ("1", "requests per key")]


def x_of(multiple):
    return math.log10(float(multiple)) / 2 * WIDTH


def y_of(percent):
    return HEIGHT - percent / 100 * HEIGHT


def panel(offset, title, files, value):
    out = [f'<g transform="translate({LEFT + offset},{TOP})">']
    out.append(f'<text x="{WIDTH / 2}" y="-14" text-anchor="middle" font-weight="bold">{title}</text>')
    for percent in (0, 25, 50, 75, 100):
        y = y_of(percent)
        out.append(f'<line x1="0" x2="{WIDTH}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        out.append(f'<text x="-8" y="{y + 4}" text-anchor="end">{percent} %</text>')
    for multiple in (1, 3, 10, 30, 100):
        out.append(f'<text x="{x_of(multiple)}" y="{HEIGHT + 18}" text-anchor="middle">{multiple}x</text>')
    for name, limiter, file, color in SERIES:
        rows = [row for row in files[file] if row["limiter"] == limiter]
        points = [(x_of(row["flood"]), y_of(value(row))) for row in rows]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"><title>{name}</title></circle>' for x, y in points]
    out.append("</g>")
    return out


def main():
    files = [read(path) for path in sys.argv[1:3]]
    total = 2 * WIDTH + 3 * LEFT
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {HEIGHT + TOP + 70}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    svg += panel(0, "new callers rejected", files, lambda row: 100 - float(row["new pass after %"]))
    svg += panel(WIDTH + LEFT, "exhausted keys with a fresh burst", files, lambda row: float(row["attackers refreshed %"]))
    for index, (name, _, _, color) in enumerate(SERIES):
        x = LEFT + index * (total - LEFT) / len(SERIES)
        y = TOP + HEIGHT + 48
        svg.append(f'<line x1="{x}" x2="{x + 24}" y1="{y}" y2="{y}" stroke="{color}" stroke-width="3"/>')
        svg.append(f'<text x="{x + 30}" y="{y + 4}">{name}</text>')
    svg.append("</svg>")
    print("\n".join(svg))


main()
