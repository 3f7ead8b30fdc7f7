"""Pid 1 of a guest or tool run: starts the command, reaps orphans, passes signals on, ends with its status.

An init of our own because Linux ignores signals that pid 1 does not handle, and because whatever outlives the command
dies with pid 1. Runs confined; holds none of the command's streams, so their end is the command's end.
"""

import errno
import json
import os
import signal
import socket

COULD_NOT_START = 125
_FORWARDED = {
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGTSTP,
    signal.SIGWINCH,
}


def run(argv: list[str], env: dict[str, str], status: socket.socket, *, keep_agent_socket: bool, terminal: bool) -> int:
    """Returns the exit code: the command's own, or 128+n if a signal ended it."""
    watched = _FORWARDED | {signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        command = _start(argv, env, keep_agent_socket, terminal)
    except OSError as problem:
        status.send(json.dumps({"failed": {"step": "exec", "errno": problem.errno, "why": problem.strerror}}).encode())
        return COULD_NOT_START
    os.closerange(0, 4)
    status.close()  # only now: its end tells the kernel that the command runs
    while True:
        received = signal.sigwait(watched)
        if received == signal.SIGCHLD:
            ended = _reap(command)
            if ended is not None:
                code = os.waitstatus_to_exitcode(ended)
                return code if code >= 0 else 128 - code
        else:
            _pass_on(command, received)


def _start(argv: list[str], env: dict[str, str], keep_agent_socket: bool, terminal: bool) -> int:
    """Not by fork: copying an interpreter only to replace it is the larger part of starting a small tool."""
    actions: list[tuple[int, ...]] = [] if keep_agent_socket else [(os.POSIX_SPAWN_CLOSE, 3)]
    if not terminal:
        return os.posix_spawnp(argv[0], argv, env, file_actions=actions, setpgroup=0, setsigmask=())
    # The first terminal that a session's leader opens becomes its own: job control works, and Ctrl-C reaches it.
    own = (os.POSIX_SPAWN_OPEN, 0, os.ttyname(0), os.O_RDWR, 0)
    return os.posix_spawnp(argv[0], argv, env, file_actions=[own, *actions], setsid=True, setsigmask=())


def _reap(command: int) -> int | None:
    """Collect every ended child; the wait status of the command itself if it is among them."""
    result = None
    while True:
        try:
            pid, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return result
        if pid == 0:
            return result
        if pid == command:
            result = ended


def _pass_on(command: int, received: int) -> None:
    try:
        os.killpg(command, received)
    except OSError as problem:
        if problem.errno != errno.ESRCH:  # it ended just now; SIGCHLD is on its way
            raise
