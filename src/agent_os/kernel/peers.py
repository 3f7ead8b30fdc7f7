"""Who is at the control socket: the operator, or nobody.

Agents can share the operator's uid, so the uid proves nothing alone: a peer must also live in our own user namespace,
looked at through a descriptor of that very process. That is asked of everybody, with a token or without: whoever shows
one gets its role, no more.
"""

import os
import select
import socket
import struct
from typing import Any

from agent_os.abi.errors import EPERM
from agent_os.kernel import beneath
from agent_os.kernel.table import Actor
from agent_os.kernel.tokens import Client, Words

_SO_PEERPIDFD = 77  # Linux 6.5


def admit(transport_socket: Any, word: str | None, words: Words) -> Actor | Client:
    """Who is behind a connection; EPERM says why it is nobody."""
    with socket.socket(fileno=os.dup(transport_socket.fileno())) as peer:
        pid, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        if uid != os.geteuid():
            raise EPERM("peer.uid", f"process {pid} of uid {uid} is not the operator of this kernel")
        _require_our_namespace(peer, pid, word)
    return Actor(f"local:{uid}", pid) if word is None else words.admit(word, pid)


def _require_our_namespace(peer: socket.socket, pid: int, word: str | None) -> None:
    """On an older Linux the process can only be looked at by its number, which may be another's by now; there that is
    enough together with a token, and without one nobody is let in."""
    try:
        pidfd = peer.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        if word is None:
            reason = "this Linux cannot show who connected: that needs 6.5"
            raise EPERM("peer.pidfd", reason, hint="AGENT_OS_TOKEN_FILE=FILE shows a token") from None
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as problem:
            raise EPERM("peer.gone", f"process {pid} cannot be looked at: {problem.strerror}") from None
    try:
        with beneath.closing(pidfd):
            theirs, ours = os.stat(f"/proc/{pid}/ns/user"), os.stat("/proc/self/ns/user")
            ended = select.poll()
            ended.register(pidfd, select.POLLIN)
            if ended.poll(0):  # then the pid may have been another's while we looked
                raise EPERM("peer.gone", f"process {pid} has ended")
    except OSError as problem:
        raise EPERM("peer.hidden", f"process {pid} cannot be looked at: {problem.strerror}") from None
    if (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino):
        raise EPERM("peer.namespace", f"process {pid} lives in a user namespace of its own, as agents do")
