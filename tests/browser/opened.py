"""A page opened in headless Chromium."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def open_page(page: Path, scratch: Path) -> tuple[str, str, list[str]]:
    """The document after its scripts ran, what the console said, and every address that was asked for."""
    scratch.mkdir(parents=True, exist_ok=True)
    net_log = scratch / "net.json"
    switches = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
                "--enable-logging=stderr", "--virtual-time-budget=10000", "--window-size=1200,3000", f"--user-data-dir={scratch / 'profile'}", f"--log-net-log={net_log}", "--dump-dom"]  # fmt: skip
    done = subprocess.run([str(CHROMIUM), *switches, page.as_uri()], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    console = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    events = json.loads(net_log.read_text())
    kinds = {number: name for name, number in events["constants"]["logEventTypes"].items()}
    started = [e["params"] for e in events["events"] if kinds[e["type"]] == "URL_REQUEST_START_JOB" and "url" in e.get("params", {})]
    of_browser = re.compile(r"https?://[\w.-]+\.(google|googleapis|gvt1)\.com/|chrome:")  # its own errands, which the page has no part in
    asked = [e["url"] for e in started if not of_browser.match(e["url"])]
    return done.stdout, console, asked
