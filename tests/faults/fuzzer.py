"""Speaks the wire badly: `fuzzer.py DOOR SEED`. Each descriptor that comes through the door leads to a kernel.

Frames that are right are changed by chance and sent until the kernel says goodbye or enough was said; then it asks for
the next connection. Told to, it does the same work with nobody at the other end: so much it takes of the machine. What
it heard is told at the end, when the door closes.
"""

import json
import os
import random
import socket
import struct
import sys
from collections import Counter
from contextlib import suppress

from agent_os.abi import frames
from agent_os.abi.errors import AgentOSError
from agent_os.abi.syscalls import TABLE

FRAMES_EACH = 40
TO_ANSWER = 0.05  # seconds after the last frame, or answer
VALUES = (None, True, -1, 2**63, 0.5, "", "/mem/working/x", "../..", b"\xff" * 40, [], {}, {"path": "/work/x"})
ENDLESS = (8, 10, 27)  # they end it, or wait as they should


class Fuzzer:
    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.told: Counter[str] = Counter()

    def alone(self) -> None:
        """The same, but nobody hears it."""
        told, self.told = self.told, Counter()
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        with theirs:
            self.live(ours)
        self.told = told

    def live(self, sock: socket.socket) -> None:
        """One connection, from a greeting that is mostly right to whatever comes of it."""
        sock.settimeout(2.0)
        splitter = frames.Splitter()
        self.told["connections"] += 1
        with sock, suppress(OSError, AgentOSError):
            if self._chance.random() < 0.9:
                sock.sendall(frames.encode(frames.Hello(1, 1)))
            out_of_step = self._chance.random() < 0.5
            for _ in range(FRAMES_EACH):
                data = frames.encode(self._frame())
                sock.sendall(self._out_of_step(data) if out_of_step else self._flipped(data))
                self.told["frames"] += 1
            sock.settimeout(TO_ANSWER)
            while data := sock.recv(1 << 16):
                for one in splitter.feed(data):
                    self._hear(frames.decode_from_kernel(one))

    def _hear(self, heard: frames.FromKernel | None) -> None:
        if isinstance(heard, frames.Bye):
            self.told[f"bye {heard.code}"] += 1
        elif isinstance(heard, frames.Reply | frames.Error | frames.End):
            self.told["answers"] += 1

    def _frame(self) -> frames.Frame:
        chance = self._chance
        number = chance.randrange(1 << 16)
        kind = chance.randrange(10)
        if kind == 0:
            return frames.Chunk(number, chance.randrange(3), frames.body(self._value()))
        if kind == 1:
            return chance.choice([frames.End(number, 0), frames.Cancel(number), frames.Credit(number, 1 << 40)])
        entry = chance.choice([one for one in TABLE if one.number not in ENDLESS])
        fields = [name for name in entry.request.__struct_fields__ if chance.random() < 0.7]
        return frames.Call(number, entry.number, frames.body({name: self._value() for name in fields}))

    def _value(self) -> object:
        return self._chance.choice(VALUES)

    def _flipped(self, data: bytes) -> bytes:
        """Sometimes a bit is another; where a frame ends is not touched."""
        changed = bytearray(data)
        if self._chance.random() < 0.1:
            changed[self._chance.randrange(frames.LENGTH, len(changed))] ^= 1 << self._chance.randrange(8)
        return bytes(changed)

    def _out_of_step(self, data: bytes) -> bytes:
        """Sometimes a part is missing, too much, or there twice, or the length is not the length."""
        chance, changed = self._chance, bytearray(data)
        match chance.randrange(40):
            case 0:
                del changed[chance.randrange(len(changed)) :]
            case 1:
                changed[:4] = struct.pack("<I", chance.choice([0, 1, len(data), 1 << 20, 1 << 31, (1 << 32) - 1]))
            case 2:
                at = chance.randrange(len(changed))
                changed[at:at] = chance.randbytes(chance.randrange(1, 64))
            case 3:
                changed += changed[: chance.randrange(len(changed))]
            case _:
                pass  # as it should be, but for what it asks
        return bytes(changed)


def main() -> None:
    door, fuzzer = socket.socket(fileno=int(sys.argv[1])), Fuzzer(int(sys.argv[2]))
    while True:
        try:
            door.send(b"next")
            order, found, _, _ = socket.recv_fds(door, 16, 1)
        except OSError:
            break
        if found:
            fuzzer.live(socket.socket(fileno=found[0]))
        elif order:
            fuzzer.alone()
        else:
            break
    os.write(1, json.dumps(fuzzer.told).encode())


main()
