"""Everything an attempt may aim at: canary files, a peer process, services; one set per host uid.

A `Stage` owns one temporary directory and one peer process, and takes both away. What goes out is `targets`: where
things are, never the secret itself, so that whoever shows the secret has read it.
"""

import asyncio
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hostile import attempts, attempts_namespaces

HERE = Path(__file__).resolve().parent
# Ids without an account, away from those that other parts of the tests use.
ORDINARY_UID, OTHER_UID = 64901, 64902
SETUID_PROGRAMS = ("/usr/bin/su", "/bin/su", "/usr/bin/passwd", "/usr/bin/chsh", "/usr/bin/newgrp", "/bin/mount")


def root_mode() -> bool:
    return os.geteuid() == 0


def ordinary_uid() -> int:
    """Who makes the controls: never host root."""
    return ORDINARY_UID if root_mode() else os.geteuid()


class Stage:
    """`owned`: the payload belongs to the uid, so that only a wall keeps it from changing its own files. A sandbox
    gets the payload by a mount that makes it the agent's anyway."""

    def __init__(self, uid: int, *, owned: bool) -> None:
        self.uid = uid
        nonce = secrets.token_hex(8)
        self.secret = f"SECRET-{secrets.token_hex(16)}"
        self.label = f"carry-{nonce}"
        self.marker = f"agent-os-battery-peer-{nonce}"
        self.base = Path(tempfile.mkdtemp(prefix="agent-os-battery-"))
        self.base.chmod(0o755)
        self._build(owned)
        self.peer, self.facts = self._start_peer(nonce)

    def _build(self, owned: bool) -> None:
        for name in ("hidden", "peer", "home/.ssh", "payload", "box", "work", "marks", "beyond"):
            (self.base / name).mkdir(parents=True)
        self._write("hidden/file", self.secret)
        self._write("hidden/link", self.secret)
        self._write("peer/kept", self.secret)
        self._write("home/.ssh/id_ed25519", self.secret)
        self._write("payload/read-only", "as it was")
        self._write("payload/victim", "to be deleted")
        self._write("payload/config.json", "{}")
        (self.base / "payload/hostile").mkdir()
        for script in (*sorted(HERE.glob("attempts*.py")), HERE / "battery.py", HERE / "actors.py"):
            shutil.copy(script, self.base / "payload/hostile")
        shutil.copy("/bin/sleep", self.base / "payload/sleep")
        self.project("work")
        for name in ("work", "marks", "hidden/link", "box", "beyond"):
            self.give(self.base / name)
        if owned:
            self.give(self.base / "payload")
        if root_mode():
            program = self.base / "payload/setuid"
            shutil.copy("/bin/sleep", program)
            os.chown(program, OTHER_UID, OTHER_UID)
            program.chmod(0o4755)

    def _write(self, name: str, text: str) -> None:
        path = self.base / name
        path.write_text(text)
        path.chmod(0o644)

    def project(self, name: str) -> Path:
        """A directory as a user's project would be, with credentials in it."""
        top = self.base / name
        for folder in (".ssh", "conf"):
            (top / folder).mkdir(parents=True, exist_ok=True)
        for file in (".ssh/id_ed25519", "token", "conf/.netrc"):
            self._write(f"{name}/{file}", self.secret)
        self._write(f"{name}/notes.txt", "ordinary")
        return top

    @staticmethod
    def masks(at: str) -> list[str]:
        return [f"{at}/.ssh", f"{at}/token", f"{at}/conf/.netrc"]

    def give(self, top: Path) -> None:
        if root_mode():
            for path in (top, *top.rglob("*")):
                os.chown(path, self.uid, self.uid, follow_symlinks=False)

    def _start_peer(self, nonce: str) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
        base = self.base
        self.abstract, self.key_name = f"agent-os-battery-{nonce}", f"agent-os-battery-{nonce}"
        config = {
            "uid": self.uid,
            "sockets": [f"{base}/hidden/service", f"{base}/payload/service"],
            "datagrams": [f"{base}/payload/datagrams"],
            "abstract": self.abstract,
            "secret_file": f"{base}/hidden/file",
            "key_name": self.key_name,
            "signal_mark": f"{base}/marks/signal",
        }
        self._write("peer.json", json.dumps(config))
        command = [sys.executable, "-I", "-S", str(HERE / "peer.py"), f"{base}/peer.json", self.marker, self.secret]
        peer = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PEER_SECRET": self.secret}, cwd=base / "peer"
        )
        assert peer.stdout is not None
        return peer, json.loads(peer.stdout.readline())

    def targets(self, **more: object) -> attempts.Targets:
        base = str(self.base)
        programs = [f"{base}/payload/setuid"] if root_mode() else []
        return {
            "host_file": f"{base}/hidden/file",
            "link_file": f"{base}/hidden/link",
            "ssh_file": f"{base}/home/.ssh/id_ed25519",
            "work": f"{base}/work",
            "box": f"{base}/box",
            "payload": f"{base}/payload",
            "exe": f"{base}/payload/sleep",
            "ro_file": f"{base}/payload/read-only",
            "bound_socket": f"{base}/payload/service",
            "bound_datagram": f"{base}/payload/datagrams",
            "named_socket": f"{base}/hidden/service",
            "masked_in": [f"{base}/work"],
            "setuid_programs": [*programs, *SETUID_PROGRAMS],
            "abstract": self.abstract,
            "key_name": self.key_name,
            "signal_mark": f"{base}/marks/signal",
            "marker": self.marker,
            "label": self.label,
            "port": self.facts["port"],
            "peer_pid": self.facts["pid"],
            "peer_address": self.facts["address"],
            "peer_fd": self.facts["fd"],
            "peer_file": f"{base}/peer/kept",
            "victim_pid": self.facts["pid"],
            "mount_point": "/tmp",
            "handle_on": "/usr",
            "handle_file": f"{base}/hidden/file",
            "handles": handles_of(f"{base}/hidden", f"{base}/hidden/file"),
            "pids": 64,
            "nofile": 256,
            "as_mb": 2048,
            "fsize_mb": 64,
            "full": {"tmp": (f"{base}/work", 64, 65536), "shm": (f"{base}/work", 16, 4096)},
            "outside": [f"{base}/beyond"],
            "victim_file": f"{base}/payload/victim",
            "proxy": ["127.0.0.1", 3128],
        } | more

    @property
    def canaries(self) -> list[Path]:
        hidden = (
            "beyond",
            "hidden",
            "hidden/file",
            "hidden/link",
            "peer",
            "peer/kept",
            "home/.ssh",
            "home/.ssh/id_ed25519",
        )
        shown = ("", "/read-only", "/victim", "/sleep", "/hostile", "/hostile/attempts.py", "/hostile/actors.py")
        return [self.base / name for name in hidden] + [self.base / f"payload{name}" for name in shown]

    def peer_is_untouched(self) -> bool:
        return self.peer.poll() is None and not (self.base / "marks/signal").exists()

    def close(self) -> None:
        assert self.peer.stdin is not None
        assert self.peer.stdout is not None
        self.peer.stdin.close()
        self.peer.wait(10)
        self.peer.stdout.close()
        remove(self.base)


def remove(top: Path) -> None:
    """Also what overlay leaves in its work directory: a directory that nobody may enter."""
    for folder, names, _ in os.walk(top):
        for name in names:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(top)


def handles_of(*paths: str) -> list[str]:
    try:
        return [attempts_namespaces.handle_of(path).hex() for path in paths]
    except OSError:
        return []  # a file system without handles


ALLOWED_PLACES = ("8.8.8.8:80", "8.8.8.8:443")  # what granted names resolve to; never really dialled


def _page(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def _forged(word: bytes) -> bytes:
    """An answer that speaks in the kernel's name wherever an answer has a place for a header."""
    early = b"HTTP/1.1 103 Early Hints\r\nX-AgentOS: %b\r\n\r\n" % word
    head = b"HTTP/1.1 403 Forbidden\r\nX-AgentOS: %b\r\nx-agentos: %b\r\nConnection: close\r\n" % (word, word)
    return early + head + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-AgentOS: %b\r\n\r\n" % word


class FarSide:
    """Stands for the internet: whatever address is dialled, this loopback service answers, and notes it.

    It gives the secret to whoever dialled a forbidden address or named a denied host, in TLS or in HTTP; `granted.test`
    redirects to a denied host. So the secret comes back exactly if something forbidden was reached.
    """

    def __init__(self, secret: str) -> None:
        self.secret = secret.encode()
        self.resolved: list[str] = []
        self.dialled: list[str] = []
        self._places: dict[int, str] = {}  # local port of the dialler → what it believes to have dialled
        self._server = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address: tuple[str, int] = self._server.getsockname()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(1)
            try:
                asked = connection.recv(4096)
                place = self._places.get(connection.getpeername()[1], "")
                connection.sendall(self._reply(asked, place))
            except OSError:
                return

    def _reply(self, asked: bytes, place: str) -> bytes:
        if asked[:1] == b"\x16":
            return self.secret if b"other.test" in asked or b"model.granted.test" in asked else b"hello"
        if b"ost: echo.granted.test\r" in asked:
            return _page(asked)
        if b"ost: forge.granted.test\r" in asked:
            return _forged(self.secret)
        if b"ost: model.granted.test\r" in asked:
            return _page(self.secret)
        if b"denied.test" in asked or b"other.test" in asked:
            return _page(self.secret)
        if b"ost: granted.test\r" in asked:
            return (
                b"HTTP/1.1 302 Found\r\nLocation: http://denied.test/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
        return _page(b"ordinary" if place in ALLOWED_PLACES else self.secret)

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.resolved.append(host)
        first = "127.0.0.1" if self.resolved.count(host) % 2 == 0 else "8.8.8.8"
        table = {
            "metadata": ["169.254.169.254"],
            "mapped": ["::ffff:169.254.169.254"],
            "loopback": ["127.0.0.1"],
            "rebind": [first],  # another answer each time
            "both": ["8.8.8.8", "127.0.0.1"],
        }
        return table.get(host.partition(".")[0], ["8.8.8.8"])

    async def dial(self, address: object, port: int, seconds: float) -> socket.socket:
        self.dialled.append(f"{address}:{port}")
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        sock.bind(("127.0.0.1", 0))
        self._places[sock.getsockname()[1]] = self.dialled[-1]
        await asyncio.get_running_loop().sock_connect(sock, self.address)
        return sock

    @property
    def forbidden(self) -> list[str]:
        return [place for place in self.dialled if place not in ALLOWED_PLACES]

    def close(self) -> None:
        self._server.close()


class OpenProxy:
    """A proxy without rules, for the controls: resolves every name and dials every place (of the far side)."""

    def __init__(self, far: FarSide) -> None:
        self._far = far
        self._server = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address: tuple[str, int] = self._server.getsockname()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._pass, args=(connection,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._far.address) as far:
            client.settimeout(2)
            far.settimeout(2)
            try:
                request = client.recv(8192)
                if request[:1] == b"\x05":
                    client.sendall(b"\x05\x00")
                    self._far.resolved.append(client.recv(8192).decode(errors="replace"))
                    client.sendall(b"\x05\x00\x00\x01" + bytes(6))
                    verb, request = b"SOCKS", client.recv(8192)
                else:
                    verb, target, *_ = request.split(b" ")
                    self._far.resolved.append(target.decode(errors="replace"))
                if verb == b"CONNECT":
                    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                    request = client.recv(8192)
                far.sendall(request)
                while part := far.recv(8192):
                    client.sendall(part)
            except OSError:
                return

    def close(self) -> None:
        self._server.close()
