"""A kernel with its gateway, as `agentctl up` starts them, and whoever asks it over HTTP: real processes, a home of its
own, a token for each role."""

import asyncio
import os
from pathlib import Path
from typing import Any

import httpx2

from agent_os.abi.doors import Gateway, Session, Tokens
from agent_os.abi.syscalls import Body, Status
from agent_os.client.wire import connect
from cli.desk import SECONDS, Desk

API = "/api/v1"
ROLES = ("operator", "auditor", "viewer")


class House:
    """`desk` is the operator's own; `ask` is a call on the control socket as the operator who sits there."""

    def __init__(self, top: Path, *, limits: dict[str, float] | None = None) -> None:
        self.desk, self._limits = Desk(top), limits or {}
        self.open()
        self.tokens = {role: self.token(f"test-{role}", role) for role in ROLES}

    def open(self) -> None:
        """Start both; also again, after a kernel that was killed."""
        self.desk.up()
        self.gateway = self.ask(Gateway(do="start", port=0, limits=self._limits))["gateway"]
        self.url: str = self.gateway["url"]
        self.host = self.url.removeprefix("http://")
        self.http = self.client()

    def client(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=SECONDS, trust_env=False)

    def ask(self, request: Body) -> Any:
        async def asked() -> Any:
            async with connect(self.socket) as client:
                return await client.call(request, deadline=SECONDS)

        return asyncio.run(asked())

    @property
    def socket(self) -> Path:
        return self.desk.home / "run" / "kernel.sock"

    def token(self, name: str, role: Any = "operator", ttl_s: float | None = None) -> str:
        return self.ask(Tokens(do="add", name=name, role=role, ttl_s=ttl_s))["token"]

    def code(self) -> str:
        return self.ask(Session(do="code"))["code"]

    def session(self) -> str:
        """As a browser gets one."""
        return self.http.post(f"{API}/session", json={"code": self.code()}).json()["session"]

    def status(self) -> dict[str, Any]:
        return self.ask(Status())

    def call(self, method: str, path: str, *, role: str | None = "operator", **more: Any) -> httpx2.Response:
        """`path` is below the API, unless it begins with a slash."""
        headers = {**({"Authorization": f"Bearer {self.tokens[role]}"} if role else {}), **more.pop("headers", {})}
        if method in ("POST", "PUT", "PATCH") and "json" not in more:
            headers.setdefault("Content-Type", "application/json")
        address = path if path.startswith("/") else f"{API}/{path}"
        return self.http.request(method, address, headers=headers, **more)

    def get(self, path: str, **more: Any) -> httpx2.Response:
        return self.call("GET", path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> httpx2.Response:
        return self.call("POST", path, **({} if body is None else {"json": body}), **more)

    def log(self) -> str:
        return (self.desk.home / "logs" / "gateway.log").read_text()

    def close(self) -> None:
        self.http.close()
        self.desk.down()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
