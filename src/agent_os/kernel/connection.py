"""One peer on the wire: frames in, calls through the gate, frames out.

Owns the limits that keep one peer from harming others: a frame's size before it is allocated, calls open at once,
output that nobody reads, frames handled per turn of the loop, time for a frame that has begun. An agent that has
written its share of the journal is not read for a while. A peer that breaks the rules of the wire is told goodbye; an
agent is then killed by whoever owns it. Never decides anything.

Replies do not leave one by one: whatever a commit of the journal completed leaves in one write per peer.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Raw

from agent_os.abi import frames
from agent_os.abi.errors import EMSGSIZE, ENOSYS, EPIPE, EPROTO, ETIMEDOUT, AgentOSError
from agent_os.abi.frames import (
    Bye,
    Call,
    Cancel,
    Chunk,
    Credit,
    End,
    Gathered,
    Hello,
    Part,
    Push,
    Reply,
    Splitter,
    Welcome,
)
from agent_os.abi.syscalls import TABLE
from agent_os.kernel.calls import Asked
from agent_os.kernel.table import Agent

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel
    from agent_os.kernel.passing import Passing
    from agent_os.kernel.table import Caller

OPEN_CALLS = 64
LARGE_BYTES = 64 << 20  # of open calls that came in parts
UNREAD_BYTES = 1 << 20
MOST_PUSHED = 16 << 20  # bytes waiting for a peer that does not read, beyond which it is let go at once
LONGEST_WORD = 1024
FRAMES_PER_TURN = 32
TURN = 0.00025  # seconds; one frame may be a thousand times the work of another, and who asks little waits for it
STREAM_CREDIT = 256 << 10
WAITING_CHUNKS = 4096  # of one call: the smallest take a hundred times the memory that credit counts
TO_FINISH_FRAME = 10.0  # seconds
TO_READ = 30.0
TO_LEAVE = 1.0
LIMITS = {
    "frame": frames.MAX_FRAME,
    "body": frames.MAX_BODY,
    "open_calls": OPEN_CALLS,
    "unread": UNREAD_BYTES,
    "nesting": frames.MAX_NESTING,
    "stream_credit": STREAM_CREDIT,
}
_A_WHILE = 0.1  # seconds between two looks at a clock that stands still
_decode_any = msgspec.msgpack.Decoder().decode
_TWO_WAY = 2**32
_STREAMED = {one.number: one.stream != "out" for one in TABLE if one.stream}  # whether it takes chunks
_LARGE = {one.number for one in TABLE if one.large}
_GONE = object()


class Connection(asyncio.Protocol):
    """`admit` says who the peer is once it said hello, or raises; `lost` is called when it is gone, with the fault that
    ended it, if there was one."""

    __slots__ = (
        "_admit",
        "_alarm",
        "_gathered",
        "_held",
        "_kernel",
        "_large",
        "_lost",
        "_open",
        "_out",
        "_paused",
        "_pushes",
        "_resting",
        "_scheduled",
        "_splitter",
        "_streams",
        "_stuck",
        "_unread",
        "_waiting",
        "caller",
        "fault",
        "transport",
    )

    def __init__(
        self,
        kernel: "Kernel",
        admit: "Callable[[Connection, Hello], Caller]",
        lost: "Callable[[Connection, AgentOSError | None], None]",
    ) -> None:
        self._kernel, self._admit, self._lost = kernel, admit, lost
        self._splitter = Splitter()
        self._waiting: list[bytes] = []  # whole frames, not yet handled, the oldest last; a deque takes 760 bytes
        self._open: dict[int, Passing | None] = {}
        self._streams: dict[int, Stream] = {}
        self._gathered: Gathered | None = None
        self._large: dict[int, int] = {}  # open calls that came in parts: their bytes
        self._out: list[bytes] = []
        self._scheduled = self._paused = self._stuck = self._held = False
        self._alarm: asyncio.TimerHandle | None = None  # a frame has begun, or hello is due
        self._unread: asyncio.TimerHandle | None = None
        self._resting: asyncio.TimerHandle | None = None  # it is not read: it has written its share of the journal
        self._pushes = 0
        self.fault: AgentOSError | None = None
        self.caller: Caller | None = None
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)

    # What the loop tells us.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=UNREAD_BYTES)
        self._kernel.connections.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            whole = self._splitter.feed(data)
        except EMSGSIZE as error:
            self.bye(error)
            return
        whole.reverse()
        self._waiting = whole + self._waiting if self._waiting else whole
        if not self._scheduled:
            self._turn()
        if self._alarm or self._splitter.partial or self.caller is None:
            self._watch_frame()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """The peer does not read what we write: nothing more is taken from it, and after a while it is let go."""
        self._stuck = True
        self._give_time_to_read(self._time() + TO_READ)
        self._steer()

    def _give_time_to_read(self, until: float) -> None:
        left = until - self._time()
        if left > 0:
            pause = max(left, _A_WHILE)
            self._unread = asyncio.get_running_loop().call_later(pause, self._give_time_to_read, until)
        else:
            self.bye(EPIPE("unread", f"{UNREAD_BYTES} bytes were not read for {TO_READ:.0f} s"))

    def _time(self) -> float:
        """As it passes for the peer: an agent that is held can neither read nor finish a frame."""
        return self.caller.clock.seconds if isinstance(self.caller, Agent) else time.monotonic()

    def resume_writing(self) -> None:
        self._stuck = False
        if self._unread:
            self._unread.cancel()
        self._turn_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._alarm, self._unread, self._resting):
            if timer:
                timer.cancel()
        self._kernel.connections.discard(self)
        self._waiting.clear()
        for stream in self._streams.values():
            stream.lose()
        gate = self._kernel.gate
        let_go = gate.cancel if self.caller and self.caller.operator else gate.abandon
        for passing in list(self._open.values()):
            if passing:
                let_go(passing)
        self._lost(self, self.fault)

    # Frames in.

    def _turn(self) -> None:
        """A fair share of the waiting frames; the rest has its turn after everybody else."""
        self._scheduled = False
        waiting, closing = self._waiting, self.transport.is_closing
        left, until = FRAMES_PER_TURN, time.monotonic() + TURN
        try:
            while waiting and left and not self._full() and not closing():
                left -= 1
                self._frame(waiting.pop())
                if time.monotonic() > until:
                    left = 0
        except AgentOSError as error:
            self.bye(error)
            return
        full = self._full()
        if waiting and not full:
            self._turn_soon()
        if full or waiting or self._paused:
            self._steer()

    def _turn_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _full(self) -> bool:
        many = len(self._open) >= OPEN_CALLS or bool(self._large and sum(self._large.values()) >= LARGE_BYTES)
        return many or self._stuck or self._held or self._resting is not None

    def hold(self, still: bool) -> None:
        """Whoever the peer acts as stands still: nothing more is taken from it until that goes on."""
        self._held = still
        self._turn_soon()

    def _steer(self) -> None:
        """Read on, or let the peer's writes wait in its own socket."""
        full = bool(self._waiting) or self._full()
        if full != self._paused and not self.transport.is_closing():
            self._paused = full
            (self.transport.pause_reading if full else self.transport.resume_reading)()

    def _frame(self, data: bytes) -> None:
        frame = frames.decode_from_agent(data)
        if type(frame) is Call:
            if self.caller is None:
                raise EPROTO("hello", "the first frame is HELLO")
            self._call(self.caller, frame)
        elif frame is not None:
            self._other(cast("Hello | Chunk | End | Credit | Cancel | Part", frame))

    def _call(self, caller: "Caller", frame: Call) -> None:
        if frame.id in self._open:
            raise EPROTO("id", f"call {frame.id} is still open")
        if not 0 <= frame.id < _TWO_WAY:
            raise EPROTO("id", "an id has 32 bits")
        if len(frame.key or "") > LONGEST_WORD or len(frame.pos or "") > LONGEST_WORD:
            raise EPROTO("word", f"a key or a pos has at most {LONGEST_WORD} characters")  # they are in every entry
        number, deadline = frame.id, None
        if frame.deadline_ms is not None:
            deadline = asyncio.get_running_loop().time() + frame.deadline_ms / 1000
        seen = caller.delivered if frame.seen is None else frame.seen
        body = self._whole(frame) if self._gathered else bytes(frame.body)
        asked = Asked(frame.op, body, number, frame.cap, deadline, frame.key, frame.pos, seen)
        if frame.op in _STREAMED:
            asked.stream = self._streams[number] = Stream(self, number, _STREAMED[frame.op])
        self._open[number] = None
        answer = partial(self._answer, number, large=frame.op in _LARGE)
        passing = self._kernel.enter(caller, asked, answer)
        if number in self._open:
            self._open[number] = passing
        if isinstance(caller, Agent) and (seconds := caller.allowance.spend(len(asked.raw))):
            self._rest(seconds)

    def _whole(self, call: Call) -> bytes:
        """The body of a call that may have come in parts."""
        assert self._gathered is not None
        body = bytes(self._gathered.whole(call.id, call.body))
        self._gathered = None
        if call.op not in _LARGE:
            raise EPROTO("part", f"the body of call {call.op} is one frame")
        self._large[call.id] = len(body)
        return body

    def _rest(self, seconds: float) -> None:
        """It has written its share of the journal: it is not read until that is covered. Nothing is dropped."""
        if not self._resting:
            self._resting = asyncio.get_running_loop().call_later(seconds, self._rested)

    def _rested(self) -> None:
        self._resting = None
        self._turn_soon()

    def _other(self, frame: Hello | Chunk | End | Credit | Cancel | Part) -> None:
        if type(frame) is Hello:
            self._hello(frame)
        elif self.caller is None:
            raise EPROTO("hello", "the first frame is HELLO")
        elif type(frame) is Part:
            self._gathered = self._gathered or Gathered()
            self._gathered.take(frame)
        elif type(frame) is Cancel:
            if passing := self._open.get(frame.id):
                self._kernel.gate.cancel(passing)
        elif stream := self._streams.get(cast("Chunk", frame).id):  # else it crossed our last word on that call
            stream.take(cast("Chunk | End | Credit", frame))
            sender = self.caller if isinstance(self.caller, Agent) and type(frame) is Chunk else None
            if sender and (seconds := sender.allowance.spend(len(bytes(cast("Chunk", frame).data)))):
                self._rest(seconds)

    def _hello(self, hello: Hello) -> None:
        if self.caller is not None:
            raise EPROTO("hello", "there is one HELLO")
        if hello.abi_min > frames.ABI_MAX or hello.abi_max < frames.ABI_MIN:
            theirs, ours = (hello.abi_min, hello.abi_max), (frames.ABI_MIN, frames.ABI_MAX)
            raise ENOSYS("abi", f"you speak versions {theirs[0]} to {theirs[1]}, this kernel {ours[0]} to {ours[1]}")
        caller = self.caller = self._admit(self, hello)
        if self._alarm:  # from here on the peer's own clock counts
            self._alarm.cancel()
            self._alarm = None
        version = min(hello.abi_max, frames.ABI_MAX)
        welcome = Welcome(version, caller.id, caller.incarnation, LIMITS)
        self._kernel.greet(caller, welcome)
        self._write(frames.encode(welcome))

    def _watch_frame(self) -> None:
        """A frame that has begun must end, and hello must come."""
        due = self._splitter.partial or self.caller is None
        if due and not self._alarm:
            self._alarm = asyncio.get_running_loop().call_later(TO_FINISH_FRAME, self._late, self._time())
        elif not due and self._alarm:
            self._alarm.cancel()
            self._alarm = None

    def _late(self, began: float) -> None:
        self._alarm = None
        if not self._splitter.partial and self.caller is not None:
            return
        left = began + TO_FINISH_FRAME - self._time()
        if self._paused:  # it is we who do not read on
            self._watch_frame()
        elif left > 0:
            self._alarm = asyncio.get_running_loop().call_later(max(left, _A_WHILE), self._late, began)
        else:
            self.bye(ETIMEDOUT("frame", f"a frame was not finished within {TO_FINISH_FRAME:.0f} s"))

    # Frames out.

    def _answer(self, call: int, body: Raw, error: AgentOSError | None, *, large: bool = False) -> None:
        self._large.pop(call, None)
        if self._open.pop(call, _GONE) is not _GONE and self.caller:
            self.caller.delivered += 1
            if isinstance(self.caller, Agent):
                self.caller.allowance.spend(len(bytes(body)))  # that is on the record as well
        stream = self._streams.pop(call, None)
        if self.transport.is_closing():
            return
        if error and stream and stream.sent:
            frame: frames.Frame = frames.end_of(call, stream.sent, error)
        elif error:
            frame = frames.from_error(call, error)
        elif stream and stream.sent and bytes(body) == b"\xc0":
            frame = End(call, stream.sent)
        else:
            frame = Reply(call, body)
        data = frames.encode(frame)
        if len(data) > frames.MAX_FRAME and large and len(bytes(body)) <= frames.MAX_BODY:
            data = b"".join(map(frames.encode, [*frames.parts(call, body), Reply(call)]))
        elif len(data) > frames.MAX_FRAME:
            problem = EMSGSIZE("reply", f"the answer has {len(data)} bytes, more than a frame holds; ask for a part")
            data = frames.encode(frames.from_error(call, problem))
        self._out.append(data)
        self._kernel.flush_soon(self)
        if self._waiting or self._paused:
            self._turn_soon()

    def fail(self, error: AgentOSError) -> None:
        """The journal is lost, and with it the records that these calls waited for: nothing else will answer them."""
        for call, passing in list(self._open.items()):
            if passing and passing.task is None:
                self._answer(call, frames.NIL, error)

    def push(self, what: str, body: Any) -> None:
        """Something the peer did not ask for: a signal, a notice."""
        if self._stuck and self.transport.get_write_buffer_size() > MOST_PUSHED:
            self.bye(EPIPE("unread", f"{MOST_PUSHED} bytes were not read"))
            return
        self._pushes += 1
        self._out.append(frames.encode(Push(self._pushes, what, frames.body(body))))
        self._kernel.flush_soon(self)

    def flush(self) -> None:
        if self._out:
            data, self._out = b"".join(self._out), []
            self._write(data)

    def _write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def send_chunk(self, call: int, n: int, data: Raw) -> None:
        self.flush()
        self._write(frames.encode(Chunk(call, n, data)))

    def send_credit(self, call: int, count: int) -> None:
        self._write(frames.encode(Credit(call, count)))

    def bye(self, error: AgentOSError) -> None:
        """Tell the peer why, and close. What was answered before still goes out."""
        if self.transport.is_closing():
            return
        self.fault = error
        self.flush()
        self._write(frames.encode(Bye(error.number, f"{error.code}: {error.reason}")))
        self.transport.close()
        self._unread = asyncio.get_running_loop().call_later(TO_LEAVE, self.transport.abort)  # it may never read that


class Stream:
    """Chunks beside one call. Each side may have so many bytes under way as the other gave credit for.

    One is made for every call that might need it, and few do: what waiting takes is made when somebody waits."""

    def __init__(self, connection: Connection, call: int, takes: bool) -> None:
        self._connection, self._call, self._takes = connection, call, takes
        self._credit = STREAM_CREDIT  # what we may send
        self._granted = STREAM_CREDIT  # what the peer may send
        self._received: deque[Raw | None] = deque()
        self._wake: asyncio.Event | None = None
        self._heard = 0
        self._ended = False
        self.sent = 0  # chunks
        self.last_size = 0
        self.closed = False

    def take(self, frame: Chunk | End | Credit) -> None:
        """A frame of the peer's. Beyond its credit, or out of order, is a fault of the wire."""
        if type(frame) is Credit:
            # What it gives back is what it took; more would have us hold for it whatever it does not read.
            self._credit = min(self._credit + max(frame.bytes, 0), STREAM_CREDIT)
        elif self._ended or cast("Chunk | End", frame).n != self._heard:
            raise EPROTO("stream", f"chunk {self._heard} of call {self._call} was due")
        elif type(frame) is End:
            self._ended = True
            self._received.append(None)
        elif type(frame) is Chunk:
            if not self._takes:
                raise EPROTO("stream", f"call {self._call} takes no chunks")
            if len(self._received) >= WAITING_CHUNKS:
                raise EPROTO("stream", f"{WAITING_CHUNKS} chunks of call {self._call} wait; send fewer and larger ones")
            self._heard += 1
            self._granted -= len(bytes(frame.data))
            if self._granted < 0:
                raise EPROTO("credit", f"call {self._call} sent more than it had credit for")
            self._received.append(frame.data)
        self._news()

    def _news(self) -> None:
        if self._wake:
            self._wake.set()

    async def _until_news(self) -> None:
        self._wake = self._wake or asyncio.Event()
        self._wake.clear()
        await self._wake.wait()

    def lose(self) -> None:
        self.closed = True
        self._news()

    async def send(self, value: Any) -> None:
        data = frames.body(value)
        size = len(bytes(data))
        while self._credit < min(size, STREAM_CREDIT) and not self.closed:  # one larger than all credit goes alone
            await self._until_news()
        if self.closed:
            raise EPIPE("stream", "nobody is there to take it")
        self._credit -= size
        self._connection.send_chunk(self._call, self.sent, data)
        self.sent += 1

    async def receive(self, *, credit: bool = True) -> Any:
        """The next chunk, None at its END. Without `credit` the peer gets its bytes back by `give`."""
        while not self._received and not self.closed:
            await self._until_news()
        if not self._received:
            raise EPIPE("stream", "nobody is there to send more")
        data = self._received.popleft()
        if data is None:
            self._received.append(None)
            return None
        self.last_size = len(bytes(data))
        if credit:
            self.give(self.last_size)
        try:
            return _decode_any(data)
        except frames.UNREADABLE as problem:
            raise EPROTO("chunk", f"a chunk of this call cannot be read: {problem}") from None

    def give(self, count: int) -> None:
        self._granted += count
        self._connection.send_credit(self._call, count)
