#!/usr/bin/env python3
"""Makes the book's pictures from a real run: `make pictures`, or

    docs/figures/make.py PROGRAMS [top] [timeline] [dashboard] [page]

PROGRAMS is the directory of the built programs. A training with a slow worker runs on this machine while

    top        `gradwire top` runs in a pseudo-terminal, whose screen becomes top.svg;
    timeline   `gradwire trace` records, and a few rounds of it become timeline.svg;
    dashboard  Prometheus, if it is installed, answers queries of the Grafana dashboard, and they become dashboard.svg;
    page       Chromium, if it is installed, photographs the live page: page-light.png and page-dark.png.

It needs Python 3 alone. The pictures show what things look like, and are no measurement.
"""

import contextlib
import fcntl
import html
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import urllib.parse
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
COLUMNS, LINES = 112, 18
# The palette of a terminal, on a dark ground.
GROUND, PLAIN = "#14181f", "#d7dce4"
COLOURS = ["#4b5563", "#ef6b73", "#7dbb85", "#e0b35c", "#6ea8fe", "#c58af9", "#56c2c9", "#d7dce4"]
SERIES = ["#2563eb", "#0f766e", "#b45309", "#9333ea", "#be123c", "#4b5563"]
DASHBOARD_PANELS = ["Rounds", "Workers: bytes sent", "Stragglers", "Inbox slots", "Stored", "What trainers report"]


def esc(text):
    return html.escape(str(text), quote=False)


class Terminal:
    """What a terminal of this size shows: the few sequences that `gradwire top` writes."""

    def __init__(self, columns, lines):
        self.columns, self.lines = columns, lines
        self.cells = [[(" ", ())] * columns for _ in range(lines)]
        self.x = self.y = 0
        self.style = {}
        self.rest = ""

    def feed(self, text):
        text, self.rest = self.rest + text, ""
        at = 0
        while at < len(text):
            if text[at] != "\x1b":
                self.put(text[at])
                at += 1
                continue
            match = re.compile(r"\x1b\[([?>=]*)([0-9;]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b[=>78]").match(text, at)
            if not match:
                self.rest = text[at:]
                return
            if match[3] and not match[1]:
                self.control(match[3], [int(word or 0) for word in match[2].split(";")])
            at = match.end()

    def put(self, character):
        if character == "\r":
            self.x = 0
        elif character == "\n":
            self.y = min(self.y + 1, self.lines - 1)
        elif character >= " ":
            if self.x < self.columns:
                self.cells[self.y][self.x] = (character, tuple(sorted(self.style.items())))
            self.x += 1

    def control(self, letter, numbers):
        first = numbers[0]
        if letter == "H":
            self.y, self.x = max(first, 1) - 1, (numbers[1] if len(numbers) > 1 else 1) - 1
        elif letter == "J":
            self.cells = [[(" ", ())] * self.columns for _ in range(self.lines)]
        elif letter == "K":
            self.cells[self.y][self.x :] = [(" ", ())] * (self.columns - self.x)
        elif letter == "m":
            self.set_style(numbers)

    def set_style(self, numbers):
        while numbers:
            number = numbers.pop(0)
            if number == 0:
                self.style = {}
            elif number in (1, 2, 7):
                self.style[{1: "bold", 2: "dim", 7: "swapped"}[number]] = True
            elif number == 22:
                self.style.pop("bold", None), self.style.pop("dim", None)
            elif number == 27:
                self.style.pop("swapped", None)
            elif number in (38, 48) and numbers[:1] == [5]:
                self.style["fore" if number == 38 else "back"] = numbers[1] % 8
                numbers = numbers[2:]
            elif number in (39, 49):
                self.style.pop("fore" if number == 39 else "back", None)
            elif 30 <= number <= 37 or 90 <= number <= 97:
                self.style["fore"] = number % 10
            elif 40 <= number <= 47:
                self.style["back"] = number % 10

    def svg(self, title):
        wide, high = 7.8, 17
        width, height = self.columns * wide + 24, self.lines * high + 24
        out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">',
            f"<title>{esc(title)}</title>",
            f'<rect width="{width:.0f}" height="{height}" rx="8" fill="{GROUND}"/>',
            f'<g font-family="ui-monospace,DejaVu Sans Mono,Menlo,Consolas,monospace" font-size="13" fill="{PLAIN}">',
        ]
        for y, row in enumerate(self.cells):
            at = 0
            while at < self.columns:
                style, end = row[at][1], at
                while end < self.columns and row[end][1] == style:
                    end += 1
                out += self.run("".join(cell[0] for cell in row[at:end]), dict(style), 12 + at * wide, 25 + y * high, wide)
                at = end
        return "\n".join([*out, "</g>", "</svg>", ""])

    @staticmethod
    def run(text, style, x, y, wide):
        ground = style.get("back")
        fore = COLOURS[style["fore"]] if "fore" in style else PLAIN
        back = COLOURS[ground] if ground is not None else None
        if style.get("swapped"):
            fore, back = back or GROUND, fore
        out = []
        if back:
            out.append(f'<rect x="{x:.1f}" y="{y - 13}" width="{len(text) * wide:.1f}" height="17" fill="{back}"/>')
        words = ' font-weight="700"' if style.get("bold") else ""
        words += ' opacity="0.62"' if style.get("dim") else ""
        words += f' fill="{fore}"' if fore != PLAIN else ""
        # Drawings of SVG fold spaces, so each group of words has a place of its own.
        for group in re.finditer(r"\S+(?: \S+)*", text):
            place, kept = x + group.start() * wide, group[0]
            out.append(f'<text x="{place:.1f}" y="{y}" textLength="{len(kept) * wide:.1f}"{words}>{esc(kept)}</text>')
        return out


@contextlib.contextmanager
def training(programs, directory):
    """A job with two servers and three workers of which the last is slow; gives the address of its status."""
    script = 'n=$DMLC_WORKER_ID; [ "$n" = 2 ] && slow="--jitter-us 40000"; exec "$0" train --epochs 100000 $slow'
    command = [programs / "gradwire", "launch", "-n", "3", "-s", "2", "--set", "cluster.replicas=1"]
    command += ["--set", "log.recorder_events=16384", "--", "sh", "-c", script, programs / "gradwire-worker"]
    log = open(directory / "job.log", "w+")
    job = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
    try:
        until = time.monotonic() + 60
        while not (found := re.search(r"status at http://([^/]+)/", Path(log.name).read_text())):
            if job.poll() is not None or time.monotonic() > until:
                sys.exit(f"the training did not start:\n{Path(log.name).read_text()}")
            time.sleep(0.1)
        wait(lambda: status(found[1])["phase"] == "running", "the job runs")
        yield found[1]
    finally:
        job.send_signal(signal.SIGTERM)
        job.wait(60)


def wait(holds, what, within_s=60):
    until = time.monotonic() + within_s
    while True:
        with contextlib.suppress(OSError, ValueError, KeyError):
            if holds():
                return
        if time.monotonic() > until:
            sys.exit(f"{what}: not within {within_s} s")
        time.sleep(0.2)


def get(address, path):
    with urllib.request.urlopen(f"http://{address}/{path}", timeout=10) as answer:
        return json.load(answer)


def status(address):
    return get(address, "status")


def top(programs, address, _directory):
    screen = Terminal(COLUMNS, LINES)
    child, master = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execv(programs / "gradwire", ["gradwire", "top", "--scheduler-http", address])
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    # Long enough for a line of rounds per second.
    until = time.monotonic() + 45
    data = b""
    while time.monotonic() < until:
        if select.select([master], [], [], 0.5)[0]:
            data += os.read(master, 65536)
            text = data.decode(errors="ignore")
            # A character that is cut stays for the next time.
            data = data[len(text.encode()) :]
            screen.feed(text)
    os.write(master, b"q")
    os.waitpid(child, 0)
    # The last sequences leave the alternate screen, and are not read.
    (HERE / "top.svg").write_text(screen.svg("gradwire top, of a training with three workers of which one is slow"))


def timeline(programs, address, directory):
    wait(lambda: all(member["round"] > 300 for member in status(address)["members"] if member["role"] == "worker"), "300 rounds")
    file = directory / "trace.json"
    subprocess.run([programs / "gradwire", "trace", "--scheduler-http", address, "--out", file], check=True)
    events = json.loads(file.read_text())
    if keep := os.environ.get("KEEP_TRACE"):
        shutil.copy(file, keep)
    events = events["traceEvents"] if isinstance(events, dict) else events
    (HERE / "timeline.svg").write_text(timeline_svg(events))


def timeline_svg(events):
    processes = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    kinds = {"rounds": "#4d8a4d", "reduce, update": "#b45309", "copies": "#9333ea", "operations": "#3b6db3"}
    rows = {}
    for e in events:
        words = re.fullmatch(r"lane 0(?: (rounds|copies|operations))?(?: (\d+))?", threads.get((e["pid"], e["tid"]), ""))
        if e.get("ph") == "X" and words:
            rows.setdefault((processes[e["pid"]], words[1] or "reduce, update"), []).append((e["ts"], e["dur"], int(words[2] or 1)))
    length = 600_000
    last = max(ts + dur for spans in rows.values() for ts, dur, _ in spans)
    begin = last - 2 * length
    left, width, high, first = 172, 960, 40, 62
    order = sorted(rows, key=lambda row: (row[0], list(kinds).index(row[1])))
    height = first + len(order) * high + 34
    scale = (width - left - 20) / length
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" font-family="system-ui,sans-serif">',
        "<title>A timeline of rounds at the servers and operations at the workers; worker 2 is late</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
        '<text x="16" y="26" font-size="14" font-weight="600" fill="#111827">gradwire trace: 600 ms of a training with six tensors</text>',
        '<text x="16" y="44" font-size="12" fill="#4b5563">Worker 2 is slow. Its operations are short; those of the other workers, '
        "and the rounds, wait for it.</text>",
    ]
    for mark in range(0, 601, 100):
        x = left + mark * 1000 * scale
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{first - 6}" y2="{height - 28}" stroke="#e5e7eb"/>')
        out.append(f'<text x="{x:.1f}" y="{height - 10}" font-size="11" fill="#4b5563" text-anchor="middle">{mark} ms</text>')
    for at, row in enumerate(order):
        y = first + at * high
        out.append(f'<text x="16" y="{y + 20}" font-size="12" fill="#111827">{esc(row[0])}: {esc(row[1])}</text>')
        boxes = set()
        for ts, dur, level in rows[row]:
            x0, x1 = (left + (edge - begin) * scale for edge in (max(ts, begin), min(ts + dur, begin + length)))
            if x1 > x0 and level <= 6:
                boxes.add((round(x0, 1), y + 6 * (level - 1), max(round(x1 - x0, 1), 0.6)))
        out.append(f'<g fill="{kinds[row[1]]}" fill-opacity="0.8">')
        out += [f'<rect x="{x}" y="{top}" width="{wide}" height="5"/>' for x, top, wide in sorted(boxes)]
        out.append("</g>")
    return "\n".join([*out, "</svg>", ""])


def dashboard(_programs, address, directory):
    if not shutil.which("prometheus"):
        print("dashboard: prometheus is missing, dashboard.svg stays")
        return
    sample = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    sample = sample.replace("http://127.0.0.1:9095/targets", f"http://{address}/targets").replace(": 15s", ": 1s")
    (directory / "prometheus.yml").write_text(sample)
    for name in ("recording.yml", "alerts.yml"):
        shutil.copy(ROOT / "deploy/prometheus" / name, directory)
    own = f"127.0.0.1:{free_port()}"
    command = ["prometheus", "--config.file", directory / "prometheus.yml", f"--web.listen-address={own}"]
    log = open(directory / "prometheus.log", "w")
    prometheus = subprocess.Popen([*command, "--storage.tsdb.path", directory / "data"], stdout=log, stderr=log)
    try:
        begin = time.time()
        wait(lambda: get(own, "api/v1/query?query=up")["data"]["result"], "Prometheus scrapes")
        time.sleep(90)  # For a minute and a half of curves.
        text = (ROOT / "deploy/grafana/gradwire.json").read_text()
        panels = {p["title"]: p for p in json.loads(text)["panels"] if p.get("targets")}
        tiles = [(title, curves(own, panels[title], begin)) for title in DASHBOARD_PANELS]
        (HERE / "dashboard.svg").write_text(dashboard_svg(tiles))
    finally:
        prometheus.terminate()
        prometheus.wait()


def curves(address, panel, begin):
    """Legend and points of each series of a panel's first query, as Grafana would ask for them."""
    query = re.sub(r'"\$\w+"', '".*"', panel["targets"][0]["expr"]).replace("$__rate_interval", "15s")
    words = urllib.parse.urlencode({"query": query, "start": begin, "end": time.time(), "step": "2"})
    found = get(address, f"api/v1/query_range?{words}")["data"]["result"]
    legend = panel["targets"][0]["legendFormat"].replace(" {{instance}}", "")
    name = lambda labels: re.sub(r"{{(\w+)}}", lambda m: labels.get(m[1], ""), legend)
    return [(name(series["metric"]), [(float(t), float(v)) for t, v in series["values"]]) for series in found[:6]]


def dashboard_svg(tiles):
    wide, high, columns = 320, 190, 3
    width, height = wide * columns + 16, 40 + high * ((len(tiles) + columns - 1) // columns) + 8
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" font-family="system-ui,sans-serif">',
        "<title>Six panels of the dashboard, drawn from their queries</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#f3f4f6"/>',
        '<text x="16" y="26" font-size="14" font-weight="600" fill="#111827">Six panels of the dashboard. '
        "Drawn from their queries to a live Prometheus; not a screenshot of Grafana</text>",
    ]
    for at, (title, series) in enumerate(tiles):
        x, y = 8 + wide * (at % columns), 40 + high * (at // columns)
        out.append(f'<rect x="{x + 4}" y="{y}" width="{wide - 8}" height="{high - 8}" rx="6" fill="#ffffff" stroke="#e5e7eb"/>')
        out.append(f'<text x="{x + 16}" y="{y + 20}" font-size="12" font-weight="600" fill="#111827">{esc(title)}</text>')
        points = [point for _, own in series for point in own]
        if not points:
            continue
        low, high_v = min(t for t, _ in points), max(t for t, _ in points)
        peak = max(max(v for _, v in points), 1e-9)
        out.append(f'<text x="{x + wide - 16}" y="{y + 20}" font-size="10" fill="#6b7280" text-anchor="end">0 to {short(peak)}</text>')
        for number, (label, own) in enumerate(series):
            path = " ".join(
                f"{x + 16 + (t - low) / max(high_v - low, 1) * (wide - 40):.1f},{y + 132 - v / peak * 100:.1f}" for t, v in own
            )
            colour = SERIES[number % len(SERIES)]
            out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
            lx, ly = x + 16 + 98 * (number % 3), y + 150 + 14 * (number // 3)
            out.append(f'<rect x="{lx}" y="{ly - 7}" width="8" height="8" fill="{colour}"/>')
            out.append(f'<text x="{lx + 12}" y="{ly}" font-size="10" fill="#374151">{esc(label[:16])}</text>')
    return "\n".join([*out, "</svg>", ""])


def short(value):
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def free_port():
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def page(_programs, address, directory):
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        print("page: chromium is missing, page-light.png and page-dark.png stay")
        return
    for name, size, more in (("page-light", "1240,1010", []), ("page-dark", "400,860", ["--blink-settings=preferredColorScheme=0"])):
        command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={directory}/chrome"]
        command += [f"--window-size={size}", "--timeout=20000", "--virtual-time-budget=15000", *more]
        subprocess.run([*command, f"--screenshot={HERE}/{name}.png", f"http://{address}/"], check=True, capture_output=True, timeout=120)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    programs = Path(sys.argv[1]).resolve()
    known = {"top": top, "timeline": timeline, "dashboard": dashboard, "page": page}
    wanted = sys.argv[2:] or list(known)
    with tempfile.TemporaryDirectory() as place, training(programs, Path(place)) as address:
        for name in wanted:
            known[name](programs, address, Path(place))
            print(f"made {name}")


if __name__ == "__main__":
    main()
