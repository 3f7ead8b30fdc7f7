"""Real agents through a real launcher: guests, native agents and tool runs, and what is left of them."""

import asyncio
import errno
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import agents
from agent_os.sandbox import spawner
from agent_os.sandbox.cgroup import Group
from agent_os.sandbox.spawner import Launcher, SandboxError, lease_uid
from agent_os.sandbox.spec import GUEST_LIMITS, MAX_BYTES, Bind, Cover, Workspace, encode

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def no_descriptor_is_lost() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) <= before


def shell(script: str, **fields: object) -> agents.SpawnSpec:
    return agents.spec_of("guest", ["sh", "-c", script], limits=GUEST_LIMITS, **fields)


def test_a_guest_is_another_user_in_another_place() -> None:
    ran = agents.drive(lambda box: agents.run(box, shell("id -u; hostname; pwd; echo $$; cat /proc/sys/kernel/x")))
    assert ran.output.splitlines()[:4] == ["1000", "agent", "/work", "2"]
    assert ran.process.ready.level == "S2"  # of S3, a cap on its memory is missing


def test_no_agent_has_host_uid_zero() -> None:
    async def body(launcher: Launcher) -> str:
        spec = agents.spec_of("native", ["-c", "import signal; signal.pause()"])
        async with agents.started(launcher, spec) as (process, _):
            pid = host_pid(process.pidfd)
            return Path(f"/proc/{pid}/status").read_text()

    status = agents.drive(body)
    uids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
    assert "0" not in uids
    if os.geteuid() == 0:
        assert all(200_000 < int(uid) < 204_096 for uid in uids)


def test_two_agents_share_no_namespace_with_each_other_or_with_the_host() -> None:
    """What lies in /proc/self/ns is the same file exactly where the namespace is the same."""
    kinds = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
    script = "; ".join(f"readlink /proc/self/ns/{kind}" for kind in kinds)

    async def body(launcher: Launcher) -> list[list[str]]:
        async with agents.started(launcher, shell(f"{script}; exec sleep 60")) as (_, output):
            first = [await asyncio.to_thread(agents.read_line, output) for _ in kinds]
            second = await agents.run(launcher, shell(script))  # beside it: a number is used again after an end
            return [[line.strip() for line in first], second.output.splitlines()]

    seen = [*agents.drive(body), [os.readlink(f"/proc/self/ns/{kind}") for kind in kinds]]
    for kind, *each in zip(kinds, *seen, strict=True):
        assert all(name.startswith(f"{kind}:[") for name in each)
        assert len(set(each)) == 3, each


def test_of_the_host_a_guest_sees_a_few_facts_in_proc() -> None:
    look = (
        "cd /proc; for name in [!0-9]*; do"
        ' if [ -d "$name" ]; then ls -A "$name" 2>/dev/null | grep -q . && echo "$name";'
        ' else head -c 1 "$name" 2>/dev/null | grep -q . && echo "$name"; fi; done; true'
    )
    seen = set(agents.drive(lambda box: agents.run(box, shell(look))).output.split())
    own = {"self", "thread-self", "mounts", "net"}
    assert seen == own | {"cpuinfo", "meminfo", "stat", "uptime", "loadavg", "version", "filesystems"}


def test_the_exit_code_is_the_guests_own() -> None:
    assert agents.drive(lambda box: agents.run(box, shell("exit 7"))).code == 7
    assert agents.drive(lambda box: agents.run(box, shell("kill -9 $$"))).code == 137


def test_a_missing_command_fails_with_the_exec_step() -> None:
    with pytest.raises(SandboxError) as caught:
        agents.drive(lambda box: agents.run(box, agents.spec_of("guest", ["no-such-command"])))
    assert (caught.value.word, caught.value.step, caught.value.errno) == ("setup", "exec", 2)


def test_a_native_agent_runs_warm_and_sees_its_interpreter() -> None:
    code = "import sys, decimal, os; print(os.getpid(), sys.argv, decimal.Decimal(2)); sys.exit(3)"
    ran = agents.drive(lambda box: agents.run(box, agents.spec_of("native", ["-c", code, "x"])))
    assert (ran.code, ran.output) == (3, "1 ['-c', 'x'] 2\n")


def test_a_native_agent_has_an_empty_home_of_its_own() -> None:
    code = "import pathlib as p; h = p.Path.home(); print(h, list(h.iterdir()), (h / 'x').write_text('y'))"
    ran = agents.drive(lambda box: agents.run(box, agents.spec_of("native", ["-c", code], env={"HOME": "/home/agent"})))
    assert ran.output == "/home/agent [] 1\n"


def test_author_code_is_imported_only_after_confinement(tmp_path: Path) -> None:
    """The agent's module looks at its own world at import time: it must already be confined."""
    (tmp_path / "agent.py").write_text("import os; print(sorted(os.listdir('/home')) if 0 else os.getpid())")
    os.chmod(tmp_path, 0o755)
    ran = agents.drive(lambda box: run_with_bind(box, tmp_path))
    assert ran.output == "1\n"


async def run_with_bind(launcher: Launcher, source: Path) -> agents.Ran:
    fd = os.open(source, os.O_PATH)
    try:
        spec = agents.spec_of("native", ["/agent/agent.py"], binds=[Bind("code", "/agent")])
        return await agents.run(launcher, spec, {"code": fd})
    finally:
        os.close(fd)


def test_an_uncaught_error_of_a_native_agent_is_its_own_output() -> None:
    ran = agents.drive(lambda box: agents.run(box, agents.spec_of("native", ["-c", "1/0"])))
    assert ran.code == 1
    assert "ZeroDivisionError" in ran.output


def test_native_agents_do_not_draw_the_same_random_numbers() -> None:
    async def body(launcher: Launcher) -> set[str]:
        spec = ["-c", "import random; print(random.random())"]
        return {(await agents.run(launcher, agents.spec_of("native", spec))).output for _ in range(4)}

    assert len(agents.drive(body)) == 4


def test_a_tool_has_no_kernel_socket_and_no_network() -> None:
    argv = ["python3", "-I", "-c", "import os, socket\nprint(os.listdir('/proc/self/fd'), flush=True)\nsocket.socket()"]
    ran = agents.drive(lambda box: agents.run(box, agents.spec_of("tool", argv)))
    assert ran.output.startswith("['0', '1', '2', '3']")  # 3 is the listing itself
    assert "PermissionError" in ran.output


def test_a_guest_gets_the_kernel_socket_only_if_it_asks() -> None:
    async def body(launcher: Launcher, env: dict[str, str]) -> str:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            read, write = os.pipe()
            spec = shell("readlink /proc/$$/fd/3 || echo none", env=env)
            null = os.open(os.devnull, os.O_RDONLY)
            process = await launcher.spawn(spec, streams=(null, write, write), agent=theirs.fileno())
            for fd in (write, null):
                os.close(fd)
            text = await asyncio.to_thread(agents.read_all, read)
            os.close(read)
            await process.wait()
            process.close()
            return text

    assert agents.drive(lambda box: body(box, {})) == "none\n"
    assert agents.drive(lambda box: body(box, {"AGENT_OS_FD": "3"})).startswith("socket:")


def test_the_workspace_descriptor_shows_what_the_agent_sees() -> None:
    async def body(launcher: Launcher) -> list[str]:
        spec = shell("echo hello > file; echo done; sleep 60")
        async with agents.started(launcher, spec) as (process, output):
            await asyncio.to_thread(agents.read_line, output)
            fd = os.open("file", os.O_RDONLY, dir_fd=process.workspace)
            with os.fdopen(fd) as file:
                return [file.read()]

    assert agents.drive(body) == ["hello\n"]


def test_an_overlay_keeps_writes_apart(tmp_path: Path) -> None:
    project, kept = tmp_path / "project", tmp_path / "kept"
    project.mkdir()
    (project / "old").write_text("old")
    (project / ".ssh").mkdir()
    (project / ".ssh" / "key").write_text("SECRET")

    async def body(launcher: Launcher) -> agents.Ran:
        lease = lease_uid(launcher.root_mode)
        kept.mkdir(0o711)
        for part in ("upper", "work"):
            (kept / part).mkdir()
            os.chown(kept / part, lease.host_uid, lease.host_uid if launcher.root_mode else -1)
        fds = {"lower": os.open(project, os.O_PATH), "upper": os.open(kept, os.O_PATH)}
        script = "echo new > old; rm -rf .ssh 2>/dev/null; ls -A .ssh /work/.ssh; ls"
        at = Workspace("overlay", str(project))
        spec = shell(script, workspace=at, cwd=str(project), masks=[f"{project}/.ssh"])
        try:
            return await agents.run(launcher, spec, fds, lease)
        finally:
            for fd in fds.values():
                os.close(fd)

    ran = agents.drive(body)
    assert ran.output == ".ssh:\n\n/work/.ssh:\nold\n"
    assert (project / "old").read_text() == "old"
    assert (kept / "upper" / "old").read_text() == "new\n"
    assert (project / ".ssh" / "key").read_text() == "SECRET"


@pytest.mark.skipif(os.geteuid() != 0, reason="root: only root can make a directory the launcher may not write to")
def test_an_overlay_that_would_be_read_only_fails_the_spawn(tmp_path: Path) -> None:
    (tmp_path / "kept" / "upper").mkdir(parents=True)
    (tmp_path / "kept" / "work").mkdir()

    async def body(launcher: Launcher) -> None:
        fds = {"lower": os.open(tmp_path, os.O_PATH), "upper": os.open(tmp_path / "kept", os.O_PATH)}
        try:
            await agents.run(launcher, shell("true", workspace=Workspace("overlay", "/p"), cwd="/p"), fds)
        finally:
            for fd in fds.values():
                os.close(fd)

    with pytest.raises(SandboxError, match="read-only") as caught:
        agents.drive(body)
    assert caught.value.step == "C5"


def test_a_bind_is_read_only_unless_granted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("host")

    async def body(launcher: Launcher, rw: bool) -> agents.Ran:
        fd = os.open(tmp_path, os.O_PATH)
        try:
            spec = shell("cat /data/file; echo agent > /data/made", binds=[Bind("data", "/data", rw=rw)])
            return await agents.run(launcher, spec, {"data": fd})
        finally:
            os.close(fd)

    assert "Read-only file system" in agents.drive(lambda box: body(box, False)).output
    assert not (tmp_path / "made").exists()
    assert agents.drive(lambda box: body(box, True)).output == "host"
    assert (tmp_path / "made").stat().st_uid == tmp_path.stat().st_uid


def test_a_source_replaced_during_the_spawn_is_not_shown(tmp_path: Path) -> None:
    """User mode must walk a path again; what it finds there has to be what was pinned. Root mode never walks again."""
    real, other = tmp_path / "real", tmp_path / "other"
    real.mkdir()
    other.mkdir()
    (other / "secret").write_text("SECRET")

    async def body(launcher: Launcher) -> str:
        fd = os.open(real, os.O_PATH)
        real.rename(tmp_path / "moved")
        other.rename(real)
        try:
            spec = shell("ls /data", binds=[Bind("data", "/data")])
            return (await agents.run(launcher, spec, {"data": fd})).output
        except SandboxError as problem:
            return f"refused at {problem.step}"
        finally:
            os.close(fd)

    assert "secret" not in agents.drive(body)


def test_a_link_in_the_way_of_a_mount_point_fails_the_spawn(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to("/etc")

    async def body(launcher: Launcher) -> None:
        fds = {"lower": os.open(tmp_path, os.O_PATH), "data": os.open(tmp_path, os.O_PATH)}
        try:
            at = Workspace("bind", "/project")
            spec = shell("true", workspace=at, cwd="/project", binds=[Bind("data", "/project/data/inner")])
            await agents.run(launcher, spec, fds)
        finally:
            for fd in fds.values():
                os.close(fd)

    with pytest.raises(SandboxError) as caught:
        agents.drive(body)
    assert caught.value.step == "C5"


def test_no_mount_point_is_made_in_what_belongs_to_the_host(tmp_path: Path) -> None:
    async def body(launcher: Launcher) -> None:
        fds = {"lower": os.open(tmp_path, os.O_PATH), "data": os.open(tmp_path, os.O_PATH)}
        try:
            at = Workspace("bind", "/project")
            spec = shell("true", workspace=at, cwd="/project", binds=[Bind("data", "/project/new/inner")])
            await agents.run(launcher, spec, fds)
        finally:
            for fd in fds.values():
                os.close(fd)

    with pytest.raises(SandboxError, match="must exist already"):
        agents.drive(body)
    assert list(tmp_path.iterdir()) == []


def test_the_proxy_listener_belongs_to_the_agents_own_network() -> None:
    async def body(launcher: Launcher) -> tuple[str, bytes]:
        script = "exec 5<>/dev/tcp/127.0.0.1/3128; echo hello >&5; cat <&5"
        spec = agents.spec_of("guest", ["bash", "-c", script], net="proxy")
        async with agents.started(launcher, spec) as (process, output):
            (listener,) = process.listeners
            listener.setblocking(False)
            loop = asyncio.get_running_loop()
            wire, _ = await loop.sock_accept(listener)
            with wire:
                heard = await loop.sock_recv(wire, 100)
                await loop.sock_sendall(wire, b"from the kernel\n")
            return await asyncio.to_thread(agents.read_all, output), heard

    assert agents.drive(body) == ("from the kernel\n", b"hello\n")


def test_a_launcher_found_dead_is_started_again() -> None:
    async def body(launcher: Launcher) -> str:
        spec = shell("echo started; sleep 60")
        async with agents.started(launcher, spec) as (process, output):
            await asyncio.to_thread(agents.read_line, output)
            os.kill(launcher_pid(process.pidfd), signal.SIGKILL)
            ended = await process.wait()
            assert ended.lost
        return (await agents.run(launcher, shell("echo again"))).output

    assert agents.drive(body) == "again\n"


def test_a_cancelled_spawn_leaves_no_agent() -> None:
    async def body(launcher: Launcher) -> list[str]:
        null = os.open(os.devnull, os.O_RDWR)
        spec = shell("sleep 60")
        group = Group.create(spec.spawn_id)
        asked = asyncio.create_task(launcher.spawn(spec, streams=(null, null, null), group=group))
        await asyncio.sleep(0)  # let it begin
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        os.close(null)
        assert not any(path.exists() for _, path in group.places)
        return (await agents.run(launcher, shell("echo fine"))).output.splitlines()

    assert agents.drive(body) == ["fine"]


def test_many_agents_start_side_by_side() -> None:
    async def body(launcher: Launcher) -> list[str]:
        ran = await asyncio.gather(*(agents.run(launcher, shell(f"echo {n}")) for n in range(40)))
        return [one.output.strip() for one in ran]

    assert agents.drive(body) == [str(n) for n in range(40)]


def test_a_refused_spec_says_which_field() -> None:
    with pytest.raises(SandboxError, match="not an absolute path") as caught:
        agents.drive(lambda box: agents.run(box, shell("true", cwd="relative")))
    assert caught.value.word == "spec"


@pytest.mark.skipif(os.geteuid() != 0, reason="root: uids are leased in root mode only")
def test_two_agents_never_share_a_uid() -> None:
    leases = [lease_uid(root_mode=True) for _ in range(64)]
    try:
        assert len({lease.host_uid for lease in leases}) == 64
    finally:
        for lease in leases:
            lease.release()


def test_the_interpreter_shows_its_own_trees_and_no_home() -> None:
    home = str(Path.home())
    for prefix in spawner.interpreter_prefixes():
        assert prefix not in ("/", home)
        assert not home.startswith(f"{prefix}/")


def test_the_record_of_ready_is_complete() -> None:
    ran = agents.drive(lambda box: agents.run(box, shell("true")))
    ready = ran.process.ready
    assert set(ready.layers) == {"identity", "namespaces", "capabilities", "limits", "landlock", "seccomp"}
    assert ready.landlock_abi >= 1
    assert json.dumps(ran.exit.rusage)


def host_pid(pidfd: int) -> int:
    info = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
    return int(next(line for line in info.splitlines() if line.startswith("Pid:")).split()[1])


def launcher_pid(pidfd: int) -> int:
    """The launcher is the agent's parent."""
    status = Path(f"/proc/{host_pid(pidfd)}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("PPid:")).split()[1])


def test_an_order_of_the_largest_size_arrives() -> None:
    masks = [f"/nowhere/{number:0100}" for number in range((MAX_BYTES - 4096) // 113)]
    spec = shell("echo arrived", masks=masks)
    assert len(encode(spec)) > MAX_BYTES - 8192

    async def body(launcher: Launcher) -> agents.Ran:
        return await agents.run(launcher, spec)

    assert agents.drive(body).output == "arrived\n"


@pytest.mark.parametrize("wrong", ["moved", "replaced", ""])
def test_what_must_be_covered_is_that_very_file_or_nothing_starts(tmp_path: Path, wrong: str) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "key").write_text("CANARY")
    info = (tmp_path / "key").stat()
    if wrong:
        (tmp_path / "key").rename(tmp_path / "elsewhere")
    if wrong == "replaced":
        (tmp_path / "key").write_text("another")

    async def body(launcher: Launcher) -> agents.Ran:
        fd = os.open(tmp_path, os.O_PATH)
        cover = Cover("/data/key", device=info.st_dev, inode=info.st_ino)
        try:
            spec = shell("cat /data/*; echo covered", binds=[Bind("data", "/data")], covers=[cover])
            return await agents.run(launcher, spec, {"data": fd})
        finally:
            os.close(fd)

    if not wrong:
        assert agents.drive(body).output == "covered\n"
        return
    with pytest.raises(SandboxError, match=f"/data/key was {wrong} during the spawn") as caught:
        agents.drive(body)
    assert caught.value.errno == errno.ESTALE
