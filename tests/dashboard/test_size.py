"""What a browser has to load: little, from here only, and what the sources say."""

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dashboard.window import ROOT

pytestmark = pytest.mark.uid_free("a page shows the same to every user")

STATIC = ROOT / "src" / "agent_os" / "gateway" / "static"
LOCK = ROOT / "dashboard" / "package-lock.json"


def packed(suffix: str) -> int:
    return sum(len(gzip.compress(path.read_bytes(), 9)) for path in STATIC.rglob(f"*{suffix}"))


def files(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_it_is_small() -> None:
    assert 10_000 < packed(".js") <= 90_000
    assert 1_000 < packed(".css") <= 15_000


def test_the_page_names_what_is_there_and_nothing_else() -> None:
    page = (STATIC / "index.html").read_text()
    named = set(re.findall(r'(?:src|href)="/(assets/[^"]+)"', page))
    assert named == {name for name in files(STATIC) if name.startswith("assets/")}
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", page), "nothing that its CSP forbids"


def test_no_other_host_is_named() -> None:
    for name, data in files(STATIC).items():
        if not name.endswith(".txt"):
            hosts = set(re.findall(rb"(?:https?|wss?)://([a-z0-9.-]+)", data))
            assert hosts <= {b"www.w3.org"}, f"{name}: {hosts}"  # the names of XML's vocabularies


def test_the_lock_names_no_address() -> None:
    text = LOCK.read_text()
    assert '"resolved"' not in text
    assert "://" not in re.sub(r'"url": "[^"]*"', "", text)
    assert text.count('"integrity"') > 5


@pytest.mark.integration
def test_the_sources_give_these_bytes(tmp_path: Path) -> None:
    if not shutil.which("npm"):
        pytest.skip("no npm found; the build is as it was committed")
    copy = tmp_path / "dashboard"
    shutil.copytree(ROOT / "dashboard", copy, ignore=shutil.ignore_patterns("node_modules"))
    got = subprocess.run(
        ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    if got.returncode:
        pytest.skip(f"no npm packages to be had: {(got.stderr.strip().splitlines() or ['no word'])[-1]}")
    types = subprocess.run(["node_modules/.bin/tsc", "--noEmit"], cwd=copy, capture_output=True, text=True, check=False)
    assert types.returncode == 0, types.stdout
    subprocess.run(["node", "build.mjs", "--out", str(tmp_path / "out")], cwd=copy, check=True, timeout=180)
    assert files(tmp_path / "out") == files(STATIC)
