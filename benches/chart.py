#!/usr/bin/env python3
"""Writes the README's chart of benchmarks from the committed results:

    benches/chart.py > docs/figures/benchmarks.svg

A test fails when the committed chart is not what this script writes.
"""

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results" / "bench.json"
# Title, and what selects the rows: the name, and the bytes of a tensor where the name has several sizes.
WORK = [
    ("push_pull, 64 KiB tensors", "push_pull", 65536),
    ("push_pull, 1 MiB tensors", "push_pull", 1048576),
    ("push_pull, 64 MiB tensors", "push_pull", 67108864),
    ("VGG-16, 32 tensors", "vgg16", None),
    ("Inception-v3, 196 tensors", "inception_v3", None),
]
SERIES = [
    ("shm_view", "Gradwire, shared memory, weights read in place", "#1d4ed8"),
    ("shm", "Gradwire, shared memory", "#60a5fa"),
    ("tcp", "Gradwire, TCP on loopback", "#0f766e"),
    ("grpc", "parameter server over gRPC (tonic), tuned", "#9ca3af"),
]
WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 760, 190, 60, 104, 13, 16


def rate(rows, name, transport, size):
    """GB/s of the row that fits; there is exactly one."""
    fitting = [
        row["gb_per_s"]
        for row in rows
        if row["name"] == name and row["transport"] == transport and size in (None, row.get("bytes"))
    ]
    assert len(fitting) == 1, (name, transport, size, fitting)
    return fitting[0]


def chart(rows):
    group = BAR * len(SERIES) + GAP
    height = TOP + group * len(WORK) + 16
    rates = [[rate(rows, name, transport, size) for transport, _, _ in SERIES] for _, name, size in WORK]
    scale = (WIDTH - LEFT - RIGHT) / max(map(max, rates))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-family="sans-serif">',
        "<title>Throughput of push_pull, both directions, in GB/s</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        '<text x="16" y="26" font-size="15" font-weight="600" fill="#111827">Throughput of push_pull, both directions, GB/s</text>',
        '<text x="16" y="44" font-size="11" fill="#4b5563">One worker, one server, one machine with 2 cores; '
        "medians of interleaved pairs (benches/results/bench.json)</text>",
    ]
    for at, (_, label, colour) in enumerate(SERIES):
        x, y = 16 + 370 * (at % 2), 62 + 18 * (at // 2)
        lines.append(f'<rect x="{x}" y="{y}" width="11" height="11" fill="{colour}"/>')
        lines.append(f'<text x="{x + 17}" y="{y + 10}" font-size="12" fill="#111827">{label}</text>')
    for at, ((title, _, _), values) in enumerate(zip(WORK, rates)):
        top = TOP + group * at + GAP // 2
        middle = top + BAR * len(SERIES) / 2 + 4
        lines.append(
            f'<text x="{LEFT - 10}" y="{middle:.1f}" font-size="12" text-anchor="end" fill="#111827">{title}</text>'
        )
        for bar, (value, (_, _, colour)) in enumerate(zip(values, SERIES)):
            y, width = top + BAR * bar, scale * value
            lines.append(
                f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 2}" fill="{colour}"/>'
                f'<text x="{LEFT + width + 5:.1f}" y="{y + 9.5}" font-size="10.5" fill="#374151">{value:.1f}</text>'
            )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    print(chart(json.loads(RESULTS.read_text())), end="")
