"""Operators keep secrets over the control socket: every change is on record, no value is anywhere."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EACCES, EEXIST, EINVAL, ENOENT, EPERM
from agent_os.abi.syscalls import BY_REQUEST, Secrets
from agent_os.client.wire import Client
from agent_os.kernel.authority import keys
from agent_os.kernel.calls import Asked
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.table import Actor
from guests.canary import files_below, sought
from kernel.serving import Caller, serving

VALUE, NEW = b"sk-canary-1234567890", b"sk-canary-0987654321"
Work = Callable[[Kernel, Client], Coroutine[Any, Any, None]]


def run(home: Path, work: Work) -> None:
    async def served() -> None:
        async with serving(home) as (kernel, client):
            await work(kernel, client)

    asyncio.run(served())


async def give(client: Client, request: Secrets, *chunks: Any) -> Any:
    stream = client.stream(request)
    for chunk in chunks:
        await stream.send(chunk)
    stream.end()
    return await stream.result()


def changes(kernel: Kernel) -> list[dict[str, Any]]:
    """But for who asked for them, which their operation tells."""
    found = [one for one in kernel.journal.scan() if one[0].kind == Kind.CHANGE and not one[0].op]
    return [decode_any(body) for _, body in found if body]


def test_the_life_of_a_secret_is_on_record_and_its_values_are_not(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        made = await give(client, Secrets(do="set", name="key"), VALUE[:5], VALUE[5:])
        assert (made["name"], made["version"], made["bindings"]) == ("key", 1, [])
        bound = await client.call(Secrets(do="bind", name="key", hosts=["api.example.com"], agents=["a-*"]))
        assert bound["bindings"][0]["header"] == "authorization"
        assert (await give(client, Secrets(do="rotate", name="key"), NEW))["version"] == 2
        (listed,) = (await client.call(Secrets(do="list")))["secrets"]
        assert (listed["name"], listed["version"], listed["uses"], listed["last_s"]) == ("key", 2, 0, None)
        given = kernel.safe.use("key", "a-1", "api.example.com", 443, "GET")
        assert given.value == NEW
        assert (await client.call(Secrets(do="unbind", name="key")))["bindings"] == []
        await client.call(Secrets(do="remove", name="key"))
        assert (await client.call(Secrets(do="list")))["secrets"] == []
        told = [(one["event"], one["secret"]) for one in changes(kernel)]
        assert told == [(f"secret {what}", "key") for what in ("set", "bind", "rotate", "unbind", "remove")]

    run(tmp_path / "home", work)
    for value in (VALUE, NEW):
        assert sought(value, files_below(tmp_path)) == []
    assert sought(b"secret rotate", files_below(tmp_path))


@pytest.mark.parametrize(
    ("request_", "chunks", "error"),
    [
        (Secrets(do="set", name="key"), [], EINVAL),
        (Secrets(do="set", name="key"), [b"short"], EINVAL),
        (Secrets(do="set", name="key"), ["sk-canary-as-text-is-refused"], EINVAL),
        (Secrets(do="set", name="key"), [VALUE * 1000] * 2, EINVAL),
        (Secrets(do="set", name="../key"), [VALUE], EINVAL),
        (Secrets(do="set", name=""), [VALUE], EINVAL),
        (Secrets(do="rotate", name="key"), [VALUE], ENOENT),
        (Secrets(do="bind", name="key", hosts=["a.test"]), [], ENOENT),
        (Secrets(do="bind", name="key", hosts=["*"]), [], EINVAL),
        (Secrets(do="remove", name="key"), [], ENOENT),
    ],
)
def test_what_is_wrong_is_said_and_keeps_nothing(
    tmp_path: Path, request_: Secrets, chunks: list[Any], error: type[Exception]
) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        with pytest.raises(error) as refused:
            await give(client, request_, *chunks)
        assert "canary" not in str(refused.value)
        assert (await client.call(Secrets(do="list")))["secrets"] == []

    run(tmp_path / "home", work)
    assert sought(b"sk-canary", files_below(tmp_path)) == []


def test_of_two_who_set_the_same_name_one_does(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        both = [give(client, Secrets(do="set", name="key"), value) for value in (VALUE, NEW)]
        found = await asyncio.gather(*both, return_exceptions=True)
        assert sum(isinstance(one, EEXIST) for one in found) == 1
        assert sum(isinstance(one, dict) for one in found) == 1

    run(tmp_path / "home", work)


def test_an_agent_is_not_an_operator(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        with pytest.raises(EPERM):
            await Caller(kernel, "curious").syscall(Secrets(do="list"))

    run(tmp_path / "home", work)


def test_a_wrong_key_is_told_and_the_kernel_goes_on(tmp_path: Path) -> None:
    home = tmp_path / "home"

    async def first(kernel: Kernel, client: Client) -> None:
        await give(client, Secrets(do="set", name="key"), VALUE)

    async def second(kernel: Kernel, client: Client) -> None:
        with pytest.raises(EACCES) as refused:
            await client.call(Secrets(do="list"))
        assert refused.value.code == "secrets.key"
        with pytest.raises(EACCES):
            await give(client, Secrets(do="set", name="other"), NEW)

    async def third(kernel: Kernel, client: Client) -> None:
        assert len((await client.call(Secrets(do="list")))["secrets"]) == 1

    run(home, first)
    key = home / keys.KEY_FILE
    right = key.read_bytes()
    key.write_bytes(b"f" * 64 + b"\n")
    run(home, second)
    key.write_bytes(right)
    run(home, third)


@pytest.mark.parametrize(
    "body",
    [
        frames.encode_body({"do": "set", "name": "key", "value": VALUE.decode()}),
        frames.encode_body({"do": "set", "name": "key", "value": VALUE}),
        frames.encode_body({"do": VALUE.decode()}),
        frames.encode_body([VALUE]),
        VALUE,
    ],
    ids=["a field", "bytes", "in another field", "a list", "no body at all"],
)
def test_a_value_where_none_belongs_is_refused_and_not_recorded(tmp_path: Path, body: bytes) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        asked = Asked(BY_REQUEST[Secrets].number, body)
        kernel.enter(Actor("local:0"), asked, lambda value, error: answered.set_result(error))
        assert isinstance(await answered, EINVAL)
        refused = [entry for entry, _ in kernel.journal.scan() if entry.kind == Kind.DECISION]
        assert [one.op for one in refused] == [BY_REQUEST[Secrets].number]

    run(tmp_path / "home", work)
    assert sought(VALUE, files_below(tmp_path)) == []
