"""Package managers inside a guest, from an index on the operator's own loopback, with the default guest limits."""

import base64
import functools
import hashlib
import http.server
import io
import json
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from guests.agentctl import Machine

pytestmark = pytest.mark.integration


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """The test looks at what the guest gets."""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A folder that is served on loopback, and its port."""
    folder = tmp_path / "index"
    folder.mkdir()
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, server.server_port
        server.shutdown()


def test_pip_installs_from_a_granted_index(machine: Machine, index: tuple[Path, int]) -> None:
    folder, port = index
    page = folder / "simple" / "greeting"
    page.mkdir(parents=True)
    about, name = "greeting-1.0.dist-info", "greeting-1.0-py3-none-any.whl"
    with zipfile.ZipFile(page / name, "w") as wheel:
        wheel.writestr("greeting.py", "TEXT = 'from the index'\n")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", f"greeting.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n")
    (page / "index.html").write_text(f'<a href="{name}">{name}</a>')
    script = (
        "set -e; /usr/bin/python3 -m venv .venv;"
        f" .venv/bin/pip install -q --disable-pip-version-check --index-url http://127.0.0.1:{port}/simple greeting;"
        " .venv/bin/python -c 'import greeting; print(greeting.TEXT)'"
    )
    ran = machine.run("bash", "-c", script, flags=["--net", f"127.0.0.1:{port}"])
    if ran.code and "ensurepip" in ran.err + ran.out.decode():
        pytest.skip("pip: the system's python3 cannot make a venv with pip")
    assert (ran.code, ran.lines) == (0, ["from the index"]), ran.err
    refused = machine.run("bash", "-c", script)
    assert refused.code != 0  # the control: without the flag there is no index


@pytest.mark.skipif(not shutil.which("npm"), reason="npm: not installed")
def test_npm_installs_from_a_granted_registry(machine: Machine, index: tuple[Path, int]) -> None:
    folder, port = index
    about = {"name": "greeting", "version": "1.0.0", "main": "index.js"}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in (("package.json", json.dumps(about)), ("index.js", "module.exports = 'from the registry';")):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    tarball = packed.getvalue()
    (folder / "greeting-1.0.0.tgz").write_bytes(tarball)
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(tarball).digest()).decode()
    dist = {"tarball": f"http://127.0.0.1:{port}/greeting-1.0.0.tgz", "integrity": integrity}
    packument = {"name": "greeting", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {**about, "dist": dist}}}
    (folder / "greeting").write_text(json.dumps(packument))
    script = (
        f"set -e; npm install --silent --no-audit --no-fund --registry http://127.0.0.1:{port} greeting;"
        " node -e 'console.log(require(\"greeting\"))'"
    )
    ran = machine.run("bash", "-c", script, flags=["--net", f"127.0.0.1:{port}"])
    assert (ran.code, ran.lines) == (0, ["from the registry"]), ran.err
    refused = machine.run("bash", "-c", script.replace("npm install", "npm install --fetch-retries=0"))
    assert refused.code != 0  # the control: without the flag there is no registry
