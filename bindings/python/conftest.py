"""The words in which the suite runner reads results."""

from __future__ import annotations

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """As libtest says it, which the suite runner reads."""
    reports = terminalreporter.stats
    failed = reports.get("failed", []) + reports.get("error", [])
    write = terminalreporter.write_line
    for report in failed:
        write(f"\n---- {report.nodeid} stdout ----\n{report.longreprtext.splitlines()[-1] if report.longrepr else ''}")
    verdict = "FAILED" if failed else "ok"
    counts = f"{len(reports.get('passed', []))} passed; {len(failed)} failed; {len(reports.get('skipped', []))} ignored"
    write(f"\ntest result: {verdict}. {counts}")
