"""The BPF program, judged by running it: a small evaluator stands in for the kernel, for both architectures.

That the real kernel agrees is shown by the hostile battery.
"""

import errno
import struct

import pytest

from agent_os.sandbox import seccomp, syscalls

ALLOW, KILL = 0x7FFF0000, 0x80000000
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
MACHINES = ("x86_64", "aarch64")
UNIX, INET, INET6, NETLINK, PACKET, ALG = 1, 2, 10, 16, 17, 38
STREAM, DGRAM, RAW, SEQPACKET, CLOEXEC = 1, 2, 3, 5, 0o2000000


def judge(program: bytes, nr: int, args: tuple[int, ...] = (), arch: int = AUDIT["x86_64"]) -> int:
    data = struct.pack("IIQ6Q", nr, arch, 0, *(list(args) + [0] * 6)[:6])
    code = [struct.unpack_from("HBBI", program, at) for at in range(0, len(program), 8)]
    accumulator = at = 0
    for _ in range(len(code) + 1):
        op, yes, no, k = code[at]
        at += 1
        if op == 0x20:
            accumulator = struct.unpack_from("I", data, k)[0]
        elif op == 0x54:
            accumulator &= k
        elif op == 0x06:
            return k
        else:
            taken = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[op]
            at += yes if taken else no
    raise AssertionError("the program does not end")


def refusal(code: int) -> int:
    return 0x00050000 | code


def ask(name: str, *args: int, net: str = "none", machine: str = "x86_64", memfd: bool = False) -> int:
    nr = syscalls.number(name, machine)
    assert nr is not None
    return judge(seccomp.program(net, memfd, machine), nr, args, AUDIT[machine])


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", seccomp.DENIED)
def test_every_denied_call_is_refused(name: str, machine: str) -> None:
    if syscalls.number(name, machine) is None:
        assert machine == "aarch64"  # the call does not exist there, so there is nothing to refuse
    else:
        assert ask(name, machine=machine) == refusal(errno.EPERM)


def test_the_deny_list_is_the_specified_one() -> None:
    assert len(seccomp.DENIED) == len(set(seccomp.DENIED)) == 79  # mknod and mknodat are judged by their argument


@pytest.mark.parametrize("machine", MACHINES)
def test_ordinary_calls_are_allowed(machine: str) -> None:
    program = seccomp.program("none", machine=machine)
    known = {syscalls.number(name, machine) for name in syscalls.NUMBERS}
    others = [nr for nr in range(470) if nr not in known]
    assert {judge(program, nr, arch=AUDIT[machine]) for nr in others} == {ALLOW}


@pytest.mark.parametrize("machine", MACHINES)
def test_newer_calls_than_we_know_do_not_exist(machine: str) -> None:
    assert judge(seccomp.program("none", machine=machine), 470, arch=AUDIT[machine]) == refusal(errno.ENOSYS)


def test_another_architecture_kills() -> None:
    assert judge(seccomp.program("none"), 0, arch=0x40000003) == KILL


def test_x32_kills() -> None:
    assert judge(seccomp.program("none", machine="x86_64"), 0x40000000 | 39) == KILL


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("net", "family", "kind", "allowed"),
    [
        ("none", INET, STREAM, False),
        ("none", UNIX, STREAM, False),
        ("unix", UNIX, DGRAM, True),
        ("unix", INET, STREAM, False),
        ("proxy", INET, STREAM, True),
        ("proxy", INET6, DGRAM | CLOEXEC, True),
        ("proxy", INET, RAW, False),
        ("proxy", UNIX, STREAM, False),
        ("proxy", NETLINK, RAW, False),
        ("proxy", PACKET, DGRAM, False),
        ("proxy", ALG, SEQPACKET, False),
    ],
)
def test_sockets(net: str, family: int, kind: int, allowed: bool, machine: str) -> None:
    answer = ask("socket", family, kind, net=net, machine=machine)
    assert answer == (ALLOW if allowed else refusal(errno.EACCES))


def test_only_the_low_half_of_an_int_argument_counts() -> None:
    assert ask("socket", INET | 1 << 32, STREAM | 1 << 40, net="proxy") == ALLOW
    assert ask("socket", UNIX | 1 << 32, STREAM, net="proxy") == refusal(errno.EACCES)


@pytest.mark.parametrize(
    ("family", "kind", "allowed"),
    [(UNIX, STREAM, True), (UNIX, SEQPACKET | CLOEXEC, True), (UNIX, DGRAM, False), (INET, STREAM, False)],
)
def test_socket_pairs_cannot_reach_a_named_socket(family: int, kind: int, allowed: bool) -> None:
    assert ask("socketpair", family, kind) == (ALLOW if allowed else refusal(errno.EACCES))


@pytest.mark.parametrize("name", ["clone", "unshare"])
def test_no_new_namespace(name: str) -> None:
    for bit in (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert ask(name, bit) == refusal(errno.EPERM)
    assert ask(name, 0x11) == ALLOW  # SIGCHLD: an ordinary fork


def test_clone3_is_answered_so_that_libc_falls_back() -> None:
    assert ask("clone3") == refusal(errno.ENOSYS)


@pytest.mark.parametrize("request_", [0x5412, 0x541C, 0x541D])
def test_terminal_tricks_are_refused(request_: int) -> None:
    assert ask("ioctl", 0, request_) == refusal(errno.EPERM)
    assert ask("ioctl", 0, 0x5401) == ALLOW


def test_personality_cannot_switch_protections_off() -> None:
    assert ask("personality", 0xFFFFFFFF) == ALLOW
    assert ask("personality", 0x0040000) == refusal(errno.EPERM)  # ADDR_NO_RANDOMIZE


def test_memory_files_cannot_be_executed_unless_granted() -> None:
    assert ask("memfd_create", 0, 0) == refusal(errno.EPERM)
    assert ask("memfd_create", 0, 0x8) == ALLOW
    assert ask("memfd_create", 0, 0, memfd=True) == ALLOW
    assert ask("execveat", 0, 0, 0, 0, 0x1000) == refusal(errno.EPERM)
    assert ask("execveat", 0, 0, 0, 0, 0) == ALLOW
    assert ask("execveat", 0, 0, 0, 0, 0x1000, memfd=True) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_fifos_can_be_made_and_devices_cannot(machine: str) -> None:
    for mode, allowed in (
        (0o104755, False),
        (0o012755, False),
        (0o010600, True),
        (0o100600, True),
        (0o600, True),
        (0o060600, False),
        (0o020600, False),
    ):
        assert ask("mknodat", 0, 0, mode, machine=machine) == (ALLOW if allowed else refusal(errno.EPERM))
    assert ask("mknod", 0, 0o010600) == ALLOW
    assert ask("mknod", 0, 0o140600) == refusal(errno.EPERM)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_lent_file_cannot_be_leased(machine: str) -> None:
    for command, allowed in ((1024, False), (1026, False), (0, True), (1025, True), (6, True)):
        assert ask("fcntl", 0, command, machine=machine) == (ALLOW if allowed else refusal(errno.EPERM))


def test_only_plain_tcp_and_udp_sockets() -> None:
    for protocol, allowed in ((0, True), (6, True), (17, True), (262, False), (136, False), (1, False)):
        assert ask("socket", INET, STREAM, protocol, net="proxy") == (ALLOW if allowed else refusal(errno.EACCES))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("name", "before"),
    [("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2), ("creat", 1), ("mkdir", 1), ("mkdirat", 2)],
)
def test_no_file_becomes_setuid_or_setgid(name: str, before: int, machine: str) -> None:
    if syscalls.number(name, machine) is None:
        return
    for mode, allowed in ((0o755, True), (0o1777, True), (0o4755, False), (0o2755, False), (0o6000, False)):
        assert ask(name, *[0] * before, mode, machine=machine) == (ALLOW if allowed else refusal(errno.EPERM))


@pytest.mark.parametrize("machine", MACHINES)
def test_no_file_is_made_setuid(machine: str) -> None:
    create, tmpfile, setuid = 0o100, 0o20200000, 0o4755
    assert ask("openat", 0, 0, create, setuid, machine=machine) == refusal(errno.EPERM)
    assert ask("openat", 0, 0, tmpfile, setuid, machine=machine) == refusal(errno.EPERM)
    assert ask("openat", 0, 0, create, 0o755, machine=machine) == ALLOW
    assert ask("openat", 0, 0, 0, setuid, machine=machine) == ALLOW  # nothing is made: the argument means nothing
    assert ask("openat2", machine=machine) == refusal(errno.ENOSYS)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_rename_leaves_no_device_behind(machine: str) -> None:
    for flags, allowed in ((0, True), (1, True), (2, True), (4, False), (5, False)):
        assert ask("renameat2", 0, 0, 0, 0, flags, machine=machine) == (ALLOW if allowed else refusal(errno.EPERM))
