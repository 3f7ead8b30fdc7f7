"""Real agent programs from their package indexes, installed once into a cache that several runs share.

In: a package by its exact version. Out: the directory with its command, or the reason why it cannot be had here. Writes
only below the cache: `AGENT_OS_TEST_AGENTS`, else `.cache/agents` of the checkout.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

_CHECKOUT = Path(__file__).resolve().parents[2]
_DONE = ".installed"  # holds the package's words; written last
_PYTHONS = ("3.12", "3.11", "3.10")  # what agents written in Python support


@dataclass(frozen=True)
class Package:
    name: str  # of its directory in the cache
    kind: Literal["npm", "pip"]
    words: str  # name and version as its installer spells them; several with a space between
    seconds: float  # to install it; then it counts as not to be had

    @property
    def place(self) -> Path:
        return Path(os.environ.get("AGENT_OS_TEST_AGENTS") or _CHECKOUT / ".cache" / "agents") / self.name

    @property
    def commands(self) -> Path:
        return self.place / ("node_modules/.bin" if self.kind == "npm" else "bin")


class NotToBeHad(Exception):
    """Says why."""


@cache
def obtain(package: Package) -> Path | NotToBeHad:
    """The directory with the package's command. Asked once per run: what failed would take its time to fail again."""
    try:
        with _alone(package):
            if not _is_installed(package):
                _install(package)
        return package.commands
    except NotToBeHad as reason:
        return reason
    except subprocess.TimeoutExpired:
        return NotToBeHad(f"{package.words} did not install within {package.seconds:.0f} s")
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").splitlines()
        why = next((line for line in said if "error" in line.lower()), str(error))  # installers go on to say much more
        return NotToBeHad(f"{package.words} could not be installed: {why}")
    except OSError as error:
        return NotToBeHad(f"{package.words} is not installed, or not for this user: {error.filename}: {error.strerror}")


@contextmanager
def _alone(package: Package) -> Iterator[None]:
    """Tests in several processes ask for the same package; one installs it, the others wait. A cache that cannot be
    written is complete or of no use."""
    if _is_installed(package):
        yield
        return
    package.place.parent.mkdir(parents=True, exist_ok=True)
    with package.place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_installed(package: Package) -> bool:
    try:
        return (package.place / _DONE).read_text() == package.words
    except FileNotFoundError:
        return False


def _install(package: Package) -> None:
    if package.kind == "npm":
        quiet = ["--no-audit", "--no-fund", "--loglevel=error", "--fetch-retries=1"]
        steps = [[_program("npm"), "install", *quiet, "--prefix", str(package.place), *package.words.split()]]
    else:
        steps = _pip_steps(_python(), str(package.place), package.words.split())
    if package.place.exists():
        shutil.rmtree(package.place)
    package.place.mkdir(parents=True)
    for step in steps:
        _run(step, package.seconds)
    (package.place / _DONE).write_text(package.words)


def _pip_steps(python: str, place: str, words: list[str]) -> list[list[str]]:
    """By the uv that set-up brought, in a tenth of the time; by pip where there is none."""
    own, uv = f"{place}/bin/python", Path(sys.prefix) / "bin/uv"
    if uv.exists():
        install = [str(uv), "pip", "install", "--quiet", "--no-config", "--python", own]
        return [[python, "-m", "venv", "--without-pip", place], [*install, *words]]
    install = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return [[python, "-m", "venv", place], [*install, *words]]


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise NotToBeHad(f"{name} is not installed here")
    return found


def _python() -> str:
    """One of the system's if possible: the tests run for several users, and an own one may lie in a closed home."""
    system = [Path("/usr/bin", f"python{version}") for version in _PYTHONS]
    own = [Path(os.path.realpath(sys.executable))] if f"3.{sys.version_info.minor}" in _PYTHONS else []
    for path in (*system, *own):
        if path.exists() and subprocess.run([path, "-c", "import ensurepip"], capture_output=True).returncode == 0:
            return str(path)
    raise NotToBeHad(f"there is no Python {' or '.join(_PYTHONS)} that can make a venv")


def _run(command: Sequence[str], seconds: float) -> None:
    """To its end or to the end of its time, with everything it started."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        umask=0o022,
        start_new_session=True,
        env={**os.environ, "UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never"},  # as scripts/bootstrap asks for it
    )
    with process:
        try:
            _, said = process.communicate(timeout=seconds)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, stderr=said)
