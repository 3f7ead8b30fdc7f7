"""A disk that fills up around a paid model call: nothing is sent that cannot be told of, and no bill is too small."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from agent_os import model_drivers
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EIO
from agent_os.abi.models import Message, TextBlock
from agent_os.abi.syscalls import Think
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.authority.budget import rebuilt
from agent_os.kernel.boot import boot
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.models.catalogue import Provider
from faults.inprocess import forget_peers
from journals import RESERVE, database, opened
from models.provider import MockProvider, Say, Seen
from peer import greeted
from shim_disk import ShimDisk, shim_disk

THINK = 19
QUESTION = Think(model="mock/small", messages=[Message(role="user", blocks=[TextBlock(text="Hello")])], max_output=500)


@pytest.fixture
def disk() -> Iterator[ShimDisk]:
    with shim_disk() as made:
        yield made


@asynccontextmanager
async def kernel_on(home: Path, mock: MockProvider, disk: ShimDisk | None = None) -> AsyncIterator[Kernel]:
    options: dict[str, Any] = {"vfs": disk.vfs_name} if disk else {}
    store = SqliteStore(database(home), reserve=RESERVE, **options)
    kernel = await boot(store=store, home=home, agents=False)
    kernel.models.makes = model_drivers.Drivers(store.blob, kernel.authority.labels.written_by)
    catalogue = kernel.models.catalogue
    catalogue.keep(catalogue.added(Provider(name="mock", dialect="openai", base=f"{mock.url}/v1")))
    try:
        yield kernel
    finally:
        if disk:
            disk.fail.clear()
        await forget_peers()
        await kernel.close()
        store.close()


def test_with_a_full_disk_nothing_is_asked_and_nothing_is_owed(tmp_path: Path, disk: ShimDisk) -> None:
    async def main(mock: MockProvider) -> None:
        async with kernel_on(tmp_path, mock, disk) as kernel:
            _, peer = await greeted(kernel, caps=("llm:mock/small:call",))
            disk.fail["write"] = apsw.FullError
            with pytest.raises(EIO, match="journal"):
                await peer.ask(QUESTION)

    with MockProvider(strict=False) as mock:
        asyncio.run(main(mock))
        assert mock.seen == []
    assert disk.refused > 0
    with opened(tmp_path) as journal:
        assert [entry for entry, _ in journal.scan() if entry.op == THINK] == []


def test_an_answer_that_no_disk_has_room_for_is_charged_in_full_and_the_call_can_be_made_anew(
    tmp_path: Path, disk: ShimDisk
) -> None:
    def fills(seen: Seen) -> Say:
        disk.fail["write"] = apsw.FullError
        return Say("too late", input=20, output=5)

    async def main(mock: MockProvider) -> None:
        async with kernel_on(tmp_path, mock, disk) as kernel:
            _, peer = await greeted(kernel, caps=("llm:mock/small:call",))
            with pytest.raises(EIO, match="journal"):
                await peer.ask(QUESTION)

    async def again(mock: MockProvider) -> None:
        async with kernel_on(tmp_path, mock) as kernel:
            assert not any(kernel.budgets.account("default/a").held.values())
            _, peer = await greeted(kernel, caps=("llm:mock/small:call",))
            mock.answer = lambda seen: Say("now", input=20, output=5)
            assert (await peer.ask(QUESTION))["blocks"][0]["text"] == "now"

    with MockProvider(strict=False, answer=fills) as mock:
        asyncio.run(main(mock))
        assert len(mock.seen) == 1
        asyncio.run(again(mock))
        assert len(mock.seen) == 2
    with opened(tmp_path) as journal:
        told = [entry for entry, _ in journal.scan() if entry.op == THINK]
        ledger = rebuilt(entry for entry, _ in journal.scan())
    assert [entry.kind for entry in told] == [Kind.INTENT, Kind.OUTCOME, Kind.INTENT, Kind.OUTCOME]
    assert told[1].cost["estimated"]
    assert told[1].cost["spent"] == told[0].cost["held"]
    account = ledger.account("default/a")
    assert account.spent["tokens"] == told[0].cost["held"]["tokens"] + 25
    assert not any(account.held.values())
