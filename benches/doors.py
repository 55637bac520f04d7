#!/usr/bin/env python3
"""Measures Gradwire at the doors through which programs reach it: ps-lite's API, torch beside gloo, and torch between two hosts
with a slow link. `make bench-doors` builds what it needs and runs it.

Prints a table for each door, and writes all rows as a JSON array with --json. Values are medians over the pairs, and ratios are medians of
the ratios of pairs; `low` and `high` are quartiles. A door that cannot be measured here is left out, and the reason is printed."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TORCH_GLOO = HERE.parent / "bindings/python/benches/torch_gloo.py"
PS_WORKS = ["vgg16", "inception", "mib", "keys", "latency"]
# Memory of the program, and what shared memory is set to.
PS_WAYS = [("arrays", "shm"), ("vectors", "shm"), ("arrays", "tcp")]
TORCH_BYTES = [16, 16 << 10, 1 << 20, 4 << 20, 64 << 20]
LINK_BYTES = [64 << 10, 1 << 20, 4 << 20, 64 << 20]
LINK_RATES = ["1gbit", "2.5gbit"]
# What ps-lite needs so that glibc keeps freed memory, which makes it faster.
KEEP_MEMORY = {"MALLOC_TOP_PAD_": "2000000000", "MALLOC_MMAP_MAX_": "0"}
# No program of one measurement takes longer.
DEADLINE_S = 600


class LeftOut(Exception):
    """A door that cannot be measured here, and why."""


def run(command, **environment):
    """What a program prints."""
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode != 0:
        raise LeftOut(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def spread(values):
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return {"median": statistics.median(values), "low": low, "high": high}


def compiled(folder, name, include, library):
    """The load program for headers and a library, and this library."""
    program = pathlib.Path(folder, name)
    run(["c++", "-std=c++11", "-O3", "-pthread", "-I", include, HERE / "ps/load.cc", library, "-o", program])
    return program, library


def load(program, library, work, memory, seconds, **environment):
    """GB/s and microseconds of a round of the load program."""
    text = run([HERE / "ps/run.sh", program, library, work, memory, seconds], **environment)
    found = re.search(r": ([\d.]+) GB/s, p50 ([\d.]+) us", text)
    if found is None:
        raise LeftOut(f"the load program printed {text!r}")
    return float(found[1]), float(found[2])


def ps_rows(args):
    with tempfile.TemporaryDirectory() as folder:
        ours = compiled(folder, "ours", HERE.parent / "bindings/c/include", args.library)
        theirs = compiled(folder, "theirs", *args.ps_lite) if args.ps_lite else None
        yield from rows_of_load(args, ours, theirs)


def rows_of_load(args, ours, theirs):
    for work in args.works:
        for memory, transport in PS_WAYS:
            over = {"GRADWIRE_TRANSPORT__SHM": "off"} if transport == "tcp" else {}
            pairs = []
            for _ in range(args.pairs):
                own = load(*ours, work, memory, args.seconds, **over)
                peer = load(*theirs, work, memory, args.seconds, **KEEP_MEMORY) if theirs else None
                pairs.append((own, peer))
            row = {"door": "ps-lite", "work": work, "memory": memory, "transport": transport, "pairs": args.pairs}
            row |= {"gb_per_s": spread([own[0] for own, _ in pairs]), "p50_us": spread([own[1] for own, _ in pairs])}
            if theirs:
                row["ps_lite_gb_per_s"] = spread([peer[0] for _, peer in pairs])
                row["ps_lite_p50_us"] = spread([peer[1] for _, peer in pairs])
                row["time_ratio"] = spread([peer[1] / own[1] for own, peer in pairs])
            yield row


def beside_gloo(text, **row):
    """Rows of torch_gloo.py's table."""
    for line in text.splitlines():
        found = re.match(r"\s*(\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+) \(([\d.]+) to ([\d.]+)\)", line)
        if found:
            ratio = {"median": float(found[4]), "low": float(found[5]), "high": float(found[6])}
            yield {**row, "bytes": int(found[1]), "ms": float(found[2]), "gloo_ms": float(found[3]), "time_ratio": ratio}


def torch_rows(args):
    for transport in ["shm", "tcp"]:
        command = [args.programs / "gradwire", "launch", "-n", 2, "-s", 1, "--transport", transport, "--env", "OMP_NUM_THREADS=1", "--"]
        command += [args.python, TORCH_GLOO, "--pairs", args.pairs, "--bytes", *TORCH_BYTES]
        yield from beside_gloo(run(command), door="torch", transport=transport, pairs=args.pairs)


def link_rows(args):
    if os.geteuid() != 0:
        raise LeftOut("namespaces need root")
    for rate in LINK_RATES:
        command = [HERE / "links.sh", rate, args.python, TORCH_GLOO, "--pairs", args.pairs, "--bytes", *LINK_BYTES]
        text = run(command, GRADWIRE_PROGRAMS=str(args.programs))
        yield from beside_gloo(text, door="torch between hosts", link=rate, pairs=args.pairs)


DOORS = {"ps": ps_rows, "torch": torch_rows, "links": link_rows}


def shown(row):
    """A row as text."""
    names = [str(row[key]) for key in ("door", "work", "memory", "transport", "link", "bytes") if key in row]
    text = f"{'  '.join(names):<44}"
    if "gb_per_s" in row:
        text += f" {row['gb_per_s']['median']:7.2f} GB/s {row['p50_us']['median']:10.1f} us"
    else:
        text += f" {row['ms']:9.3f} ms   gloo {row['gloo_ms']:9.3f} ms"
    if "time_ratio" in row:
        ratio = row["time_ratio"]
        text += f"   ratio {ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=DOORS, nargs="*", default=list(DOORS), help="these doors (default: all)")
    parser.add_argument("--programs", type=pathlib.Path, required=True, help="the directory of gradwire and the daemons")
    parser.add_argument("--library", type=pathlib.Path, required=True, help="libgradwire.so")
    parser.add_argument("--python", default=sys.executable, help="a Python with the package gradwire, and torch")
    parser.add_argument("--ps-lite", nargs=2, metavar=("INCLUDE", "LIBRARY"), help="ps-lite, built elsewhere, to compare with")
    parser.add_argument("--works", choices=PS_WORKS, nargs="*", default=PS_WORKS, help="works of the load program (default: all)")
    parser.add_argument("--pairs", type=int, default=7, help="runs of each (default 7)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of one run of the load program (default 1)")
    parser.add_argument("--json", type=pathlib.Path, help="also write the rows to this file")
    args = parser.parse_args()
    rows = []
    for name in args.only:
        try:
            for row in DOORS[name](args):
                rows.append(row)
                print(shown(row), flush=True)
        except (LeftOut, subprocess.TimeoutExpired, OSError) as why:
            print(f"left out: {name}: {why}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(0 if rows else 1)


if __name__ == "__main__":
    main()
