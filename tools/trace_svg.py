#!/usr/bin/env python3
"""Draws a part of a trace (`simulate --trace`, `run --trace`) as a picture for a page.

    tools/trace_svg.py trace.json -o picture.svg --title TEXT [--rows tasks|ops] [--ranks 0,1]
                       [--streams 0] [--begin US] [--length US] [--gzip]

A row a rank and stream. Times in microseconds of the trace's clock; default: all of it.
"""
import argparse
import gzip
import html
import itertools
import json

WIDTH, LEFT, ROW, GAP, TOP = 1200, 170, 26, 6, 56  # pixels
TRAFFIC = ("Send", "Recv", "ReduceGrads", "GatherParams", "shift", "all_", "reduce_", "send", "recv", "copy")
KINDS = {  # by rows: what it is, how names begin, colour; the first that fits
    "tasks": (
        ("forward", ("Forward",), "#4c78a8"),
        ("backward", ("Backward",), "#72b7b2"),
        ("traffic", TRAFFIC, "#f58518"),
        ("norm and optimizer", ("Step", "ClipNorm"), "#e45756"),
        ("other", ("",), "#bab0ac"),
    ),
    "ops": (
        ("weight gradients", ("linear_weight_grad",), "#54a24b"),
        ("input gradients", ("linear_input_grad",), "#72b7b2"),
        ("products", ("linear",), "#4c78a8"),
        ("attention", ("attention",), "#b279a2"),
        ("traffic", TRAFFIC, "#f58518"),
        ("other", ("",), "#bab0ac"),
    ),
}


def kind_of(name, rows):
    return next(kind for kind in KINDS[rows] if name.startswith(kind[1]))


def numbers(text):
    return {int(n) for n in text.split(",")}


def read(path, packed):
    with (gzip.open if packed else open)(path, "rt") as file:
        return json.load(file)["traceEvents"]


def lanes_of(events, rows, ranks, streams):
    """(rank, thread) -> [(begin, end, name)] and the names of threads."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    lanes = {}
    for e in events:
        if e["ph"] != "X" or (e["cat"] == "op") != (rows == "ops") or e["pid"] not in ranks:
            continue
        if streams and e["tid"] not in streams:
            continue
        lanes.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"], e["name"]))
    return dict(sorted(lanes.items())), names


def tick(length):
    """Microseconds between marks: 1, 2 or 5 times a power of ten, at most fifteen of them."""
    steps = (digit * 10.0**power for power in itertools.count(-3) for digit in (1, 2, 5))
    return next(step for step in steps if length / step <= 15)


def cut(lanes, begin, end):
    """What lies in [begin, end) of the lanes that have anything there."""
    parts = {lane: [b for b in boxes if b[1] > begin and b[0] < end] for lane, boxes in lanes.items()}
    return {lane: boxes for lane, boxes in parts.items() if boxes}


def draw(lanes, names, begin, end, title, rows):
    length = end - begin
    used = {kind_of(b[2], rows) for boxes in lanes.values() for b in boxes}
    scale = (WIDTH - LEFT - 10) / length
    height = TOP + len(lanes) * (ROW + GAP) + 26
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="10" y="22" font-size="15">{html.escape(title)}</text>',
    ]
    x = LEFT
    for kind in (k for k in KINDS[rows] if k in used):
        out.append(f'<rect x="{x}" y="{height - 15}" width="12" height="12" fill="{kind[2]}"/>')
        out.append(f'<text x="{x + 17}" y="{height - 5}">{kind[0]}</text>')
        x += 40 + 7 * len(kind[0])
    step = tick(length)
    for k in range(int(length / step) + 1):
        x = LEFT + k * step * scale
        mark = f"{k * step / 1000:g} ms" if length >= 5000 else f"{k * step:g} us"
        out.append(f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - 20}" stroke="#dddddd"/>')
        out.append(f'<text x="{x:.1f}" y="{TOP - 12}" text-anchor="middle" fill="#666666">{mark}</text>')
    for at, (lane, boxes) in enumerate(lanes.items()):
        y = TOP + at * (ROW + GAP)
        label = f"rank {lane[0]}, " + names.get(lane, f"stream {lane[1]}" if lane[1] else "compute").removeprefix("ops: ")
        out.append(f'<text x="10" y="{y + 17}">{html.escape(label)}</text>')
        for first, last, name in boxes:
            x0, x1 = max(first, begin), min(last, end)
            x, width = LEFT + (x0 - begin) * scale, (x1 - x0) * scale
            shown = html.escape(name)
            out.append(
                f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0.5):.1f}" height="{ROW}" fill="{kind_of(name, rows)[2]}" stroke="#ffffff"'
                f' stroke-width="0.6"><title>{shown}, {last - first:.1f} us</title></rect>'
            )
            if width > 6.2 * len(name):
                out.append(f'<text x="{x + width / 2:.1f}" y="{y + 17}" text-anchor="middle" fill="#ffffff">{shown}</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--title", required=True)
    parser.add_argument("--rows", choices=("tasks", "ops"), default="tasks")
    parser.add_argument("--ranks", type=numbers, help="numbers with commas between them; default: all")
    parser.add_argument("--streams", type=numbers, help="thread numbers of the trace; default: all")
    parser.add_argument("--begin", type=float, help="us; default: the first row's")
    parser.add_argument("--length", type=float, help="us; default: to the last row's end")
    parser.add_argument("--gzip", action="store_true", help="the trace is packed")
    a = parser.parse_args()
    try:
        events = read(a.trace, a.gzip)
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.error(f"{a.trace}: {error!r}; allowed: a file that --trace wrote, with --gzip a packed one")
    ranks = a.ranks or {e["pid"] for e in events}
    lanes, names = lanes_of(events, a.rows, ranks, a.streams)
    if not lanes:
        parser.error(f"{a.trace}: no {a.rows} of ranks {sorted(ranks)}; allowed: what the trace has; ops are in those of run --trace")
    begin = min(b[0][0] for b in lanes.values()) if a.begin is None else a.begin
    end = max(b[-1][1] for b in lanes.values()) if a.length is None else begin + a.length
    lanes = cut(lanes, begin, end)
    if not lanes:
        parser.error(f"nothing runs from {begin:.0f} to {end:.0f} us; leave out --begin and --length to see all")
    with open(a.output, "w") as file:
        file.write(draw(lanes, names, begin, end, a.title, a.rows))


if __name__ == "__main__":
    main()
