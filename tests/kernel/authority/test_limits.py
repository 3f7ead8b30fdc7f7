"""What a rule says of one call: how much it moves, how long it takes. Held to where it happens, whole or in pieces."""

import asyncio

from agent_os.abi.errors import EPOLICY, ETIMEDOUT
from agent_os.abi.syscalls import Exec, Read, Write
from kernel.authority.ruled import rule, ruled
from kernel.test_opened import _streamed as streamed
from kernel.test_opened import holding, refusal
from peer import until


def test_data_is_no_larger_than_a_rule_says_whole_in_pieces_and_read() -> None:
    async def main() -> None:
        async with holding("mem:/mem/semantic/**:read,write") as (kernel, row, peer, _):
            await peer.ask(Write(path="/mem/semantic/x", data="0123456789x"))
            ruled(kernel, rule("allow", "mem:/mem/semantic/**:read,write{max_size:10}", id="small"))  # strict
            await peer.ask(Write(path="/mem/semantic/y", data="0123456789"))
            for call in (Write(path="/mem/semantic/y", data="0123456789x"), Read(path="/mem/semantic/x")):
                error = await refusal(peer.ask(call))
                assert (error.name, error.code, error.detail["rule"]) == ("EPOLICY", "policy.size", "small")
                assert str(error.detail["where"]).startswith("policy.toml:")
            assert (await peer.ask(Read(path="/mem/semantic/x", offset=1)))["data"] == "123456789x"
            error = await streamed(peer, "/mem/semantic/z", ["01234", "56789", "x"])
            assert isinstance(error, EPOLICY)
            place = kernel.vfs.root(row.id).find("/mem/semantic/z")
            assert place is not None
            assert place.backend.stat(place.inner) is None
            assert await streamed(peer, "/mem/semantic/z", ["01234", "56789"]) is None
            assert not row.quarantined  # too much is no violation

    asyncio.run(main())


def test_a_read_that_waited_for_a_person_is_not_larger_than_a_rule_says_by_then() -> None:
    async def main() -> None:
        async with holding("mem:/mem/semantic/**:read,write") as (kernel, _, peer, _):
            await peer.ask(Write(path="/mem/semantic/x", data="0123456789x"))
            ruled(kernel, rule("ask", "mem:/mem/semantic/**:read"))
            asking = asyncio.create_task(peer.ask(Read(path="/mem/semantic/x")))
            await until(lambda: bool(kernel.approvals.pending()))
            ruled(kernel, rule("allow", "mem:/mem/semantic/**:read{max_size:10}"))
            assert (await refusal(asking)).code == "policy.size"

    asyncio.run(main())


def test_a_call_takes_no_longer_and_has_no_more_arguments_than_a_rule_says() -> None:
    async def main() -> None:
        async with holding("tool:slow:call") as (kernel, _, peer, slow):
            ruled(kernel, rule("allow", "tool:slow:call{timeout:50ms,max_size:100}"))
            assert await peer.ask(Exec(tool="slow")) == "done"
            assert (await refusal(peer.ask(Exec(tool="slow", params={"n": "x" * 100})))).code == "policy.size"
            slow.go_on.clear()
            assert isinstance(await refusal(peer.ask(Exec(tool="slow"))), ETIMEDOUT)
            assert slow.cut

    asyncio.run(main())


def test_in_shadow_mode_no_limit_and_no_rate_stops_anybody() -> None:
    async def main() -> None:
        async with holding("mem:/mem/semantic/**:write") as (kernel, _, peer, _):
            small = rule("allow", "mem:/mem/semantic/**:write{max_size:1}", rate='"1/hour"')
            ruled(kernel, small, mode="shadow")
            for _ in range(2):
                await peer.ask(Write(path="/mem/semantic/x", data="more"))
            ruled(kernel, small, mode="enforce")
            assert (await refusal(peer.ask(Write(path="/mem/semantic/x", data="more")))).code == "policy.size"

    asyncio.run(main())
