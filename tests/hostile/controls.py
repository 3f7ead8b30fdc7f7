"""Makes attempts without the sandbox (the positive control), or with exactly one of its layers.

argv: a JSON file, a marker. Never as host root: gives its uid away first. `plain` is that user as it is; `box` is root
of a throw-away user, mount, pid, net, uts, ipc and cgroup namespace of that user, with a tmpfs over /etc, /usr/share
and /dev. A layer is applied on top of where the attempt is known to succeed, so what it stops, it stops alone.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

CONFIG = json.loads(Path(sys.argv[1]).read_text())
sys.path[:0] = CONFIG["path"]

from agent_os.sandbox import landlock, limits, seccomp, syscalls  # noqa: E402
from agent_os.sandbox.spec import Limits  # noqa: E402
from hostile import attempts, battery  # noqa: E402

BOX = attempts.NEWUSER | attempts.NEWNS | attempts.NEWPID | attempts.NEWNET | attempts.NEWUTS | attempts.NEWIPC
CGROUP = 0x2000000


def main() -> None:
    inherited = battery.own_descriptors()
    maps = id_mapper(CONFIG["uid"], CONFIG["other_uid"]) if CONFIG["box"] and os.geteuid() == 0 else None
    become_ordinary(CONFIG["uid"])
    targets = CONFIG["targets"] | {"descriptors": inherited}
    if CONFIG["box"]:
        targets |= enter_box(targets, maps)
    os.chdir(targets["work"])
    if CONFIG["layer"]:
        apply(CONFIG["layer"], targets)
    if CONFIG["box"] and os.fork() == 0:  # somebody who was there before, outside every attempt
        time.sleep(60)
        os._exit(0)
    battery.run(CONFIG["ids"], targets, private_mounts=CONFIG["box"])
    print(json.dumps({"end": True, "uid": os.geteuid()}), flush=True)
    os._exit(0)


def become_ordinary(uid: int) -> None:
    assert uid != 0
    if os.geteuid() != uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
    assert 0 not in os.getresuid()


def id_mapper(uid: int, other: int) -> socket.socket:
    """Two ids in the box need somebody outside with rights to write the map: a child that does this and nothing else.
    It makes no attempt. Ask it by any byte once the namespace is there; it answers when the maps are written."""
    assert 0 not in (uid, other)
    ours, theirs = socket.socketpair()
    pid = os.getpid()
    if os.fork():
        theirs.close()
        return ours
    ours.close()
    if theirs.recv(1):
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{name}").write_text(f"0 {uid} 1\n1 {other} 1\n")
        theirs.send(b"x")
    os._exit(0)


def enter_box(targets: attempts.Targets, mapper: socket.socket | None) -> attempts.Targets:
    """We go on as pid 1 of the box; the process that started us waits for its end. Returns what is different in it."""
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(BOX | CGROUP)
    if mapper:
        mapper.send(b"x")
        assert mapper.recv(1) == b"x"
        mapper.close()
    else:
        map_one(0, uid, gid)
    if pid := os.fork():
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)
    syscalls.die_with_parent()
    secret = attempts.read(targets["host_file"])
    syscalls.mount(None, "/", syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("proc", "/proc")
    syscalls.loopback_up()
    top = targets["box"]
    syscalls.mount("tmpfs", top)
    for name in ("work", "mount", "dev"):
        os.mkdir(f"{top}/{name}")
    syscalls.mount("tmpfs", f"{top}/mount")
    with open(f"{top}/secret", "wb") as file:
        file.write(secret)
    cover_devices(f"{top}/dev")
    syscalls.mount("tmpfs", "/etc")
    syscalls.mount("tmpfs", "/usr/share")
    with open("/etc/shadow", "wb") as file:
        file.write(secret)
    open(f"{top}/empty", "w").close()
    bind(f"{top}/empty", "/proc/interrupts")  # something covered, to be uncovered
    victim = os.fork()
    if victim == 0:
        time.sleep(60)
        os._exit(0)
    return {
        "work": f"{top}/work",
        "mount_point": f"{top}/mount",
        "handle_file": f"{top}/secret",
        "handle_on": top,
        "handles": [],
        "victim_pid": victim,
    }


def map_one(inside: int, uid: int, gid: int) -> None:
    for name, text in (("setgroups", "deny"), ("uid_map", f"{inside} {uid} 1"), ("gid_map", f"{inside} {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text)


def cover_devices(stash: str) -> None:
    for name in ("null", "zero", "urandom"):
        open(f"{stash}/{name}", "w").close()
        bind(f"/dev/{name}", f"{stash}/{name}")
    syscalls.mount("tmpfs", "/dev")
    for name in ("null", "zero", "urandom"):
        open(f"/dev/{name}", "w").close()
        bind(f"{stash}/{name}", f"/dev/{name}")


def bind(source: str, target: str) -> None:
    syscalls.call("mount", source.encode(), target.encode(), None, 4096, None)


def apply(layer: str, targets: attempts.Targets) -> None:
    if layer == "capabilities":
        syscalls.drop_capabilities()
        return
    if layer == "limits":
        mine = sum(
            1 for name in os.listdir("/proc") if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid()
        )
        limits.apply_rlimits(Limits(pids=mine + 20))
        limits.bound_descriptors(Limits())
        return
    if layer == "namespaces":  # only the user namespace of step C9: for what the launcher never leaves to it alone
        uid, gid = os.geteuid(), os.getegid()
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        map_one(1000, uid, gid)
        assert "NoNewPrivs:\t0" in Path("/proc/self/status").read_text()
        return
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    if layer == "landlock":
        landlock.restrict(rules(targets), deny_tcp=True, use_abi=min(CONFIG["abi"], landlock.abi()))
    elif layer == "seccomp":
        seccomp.install(seccomp.program("none"))
    else:
        assert layer == "no_new_privs", layer


def rules(targets: attempts.Targets) -> list[landlock.Rule]:
    """As the sandbox's own, for one private directory."""
    seen = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", targets["payload"])
    devices = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")]
    return [
        *(landlock.Rule(path, landlock.READ) for path in seen),
        *(landlock.Rule(path, landlock.DEVICE) for path in devices),
        landlock.Rule(targets["work"], landlock.WRITE),
    ]


if __name__ == "__main__":
    main()
