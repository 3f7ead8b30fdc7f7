"""What waits for a client has an end."""

import asyncio

from agent_os.gateway.stream import Queue


def test_a_queue_is_full_by_number_and_by_size() -> None:
    few, small = Queue(events=2, size=1000), Queue(events=1000, size=10)
    for queue in (few, small):
        assert not queue.full
        queue.put(b"12345")
        assert not queue.full
        queue.put(b"12345")
        assert queue.full
        assert not queue.low


def test_room_comes_when_half_is_taken_and_is_not_waited_for_in_vain() -> None:
    async def test() -> None:
        queue = Queue(events=4)
        for number in range(4):
            queue.put(b"%d" % number)
        assert not await queue.room(0.01)
        waiting = asyncio.create_task(queue.room(60))
        assert [await queue.take(), await queue.take()] == [b"0", b"1"]
        assert await waiting
        assert [await queue.take(), await queue.take()] == [b"2", b"3"]
        taking = asyncio.create_task(queue.take())
        await asyncio.sleep(0)
        queue.put(b"4")
        assert await taking == b"4"

    asyncio.run(test())
