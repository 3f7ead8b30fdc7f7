"""Files and the ways around a rule: every row of the specification's table, against the gate as it is wired."""

import asyncio
import os
import threading
import unicodedata
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agent_os.abi.errors import EACCES, EBADF, EINVAL, ENOENT, EPERM, EPOLICY, AgentOSError
from agent_os.abi.syscalls import List, Open, Read, Remove, Stat, Watch, Write
from agent_os.kernel import beneath
from agent_os.kernel.authority import capability
from agent_os.kernel.authority.policy.layers import Policy
from agent_os.kernel.authority.policy.reading import read
from agent_os.kernel.authority.policy.rules import Layer
from agent_os.kernel.kernel import Kernel
from kernel.authority.ruled import HEAD, rule, ruled
from kernel.serving import Caller, serving, until

NO_ENV = "file:/work/**/.env:read,write,delete"


class Worker(Caller):
    """An agent that has a directory as its workspace."""

    def __init__(self, kernel: Kernel, project: Path, *caps: str) -> None:
        super().__init__(kernel, "anna")
        fd = beneath.open_root(project)
        self.agent.files.mount_directory("/work", fd)
        os.close(fd)
        self.agent.files.call_work(str(project))
        for text in caps or ("file:/work/**:read,write,delete",):
            self.agent.holdings.grant(capability.parse(text), "operator")

    async def read(self, path: str) -> object:
        return (await self.syscall(Read(path=path)))["data"]


def with_worker(
    top: Path, body: Callable[[Worker, Path], Awaitable[None]], *rules: str, caps: tuple[str, ...] = ()
) -> None:
    project = top / "project"
    (project / "sub").mkdir(parents=True)
    for name in (".env", "sub/.env", "plain"):
        (project / name).write_text(f"the content of {name}")
    (top / "outside").write_text("CANARY")

    async def run() -> None:
        async with serving(top / "home") as (kernel, _):
            if rules:
                ruled(kernel, *rules, mode="enforce")
            await body(Worker(kernel, project, *caps), project)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/work/../outside", EINVAL),
        ("/work/sub/../../outside", EINVAL),
        ("/work/sub/../.env", EINVAL),
        ("TOP/outside", ENOENT),  # an absolute path of the host is no path here
        ("/etc/passwd", ENOENT),
        ("/work/outward", EACCES),
        ("/work/outward-absolute", EACCES),
        ("/work/folder/outside", EACCES),
        ("/work/magic", EACCES),
        ("/proc/self/root/etc/passwd", ENOENT),
        ("/work/nul\0.txt", EINVAL),
        ("/work/bell\a", EINVAL),
        ("/work/line\nbreak", EINVAL),
        ("/work/cafe\u0301", EINVAL),
    ],
)
def test_no_spelling_leads_out_of_the_workspace(tmp_path: Path, path: str, error: type[AgentOSError]) -> None:
    async def test(worker: Worker, project: Path) -> None:
        (project / "outward").symlink_to("../outside")
        (project / "outward-absolute").symlink_to(tmp_path / "outside")
        (project / "folder").symlink_to("..")
        (project / "magic").symlink_to("/proc/self/root/etc/passwd")
        with pytest.raises(error):
            await worker.read(path.replace("TOP", str(tmp_path)))
        assert await worker.read("/work/plain") == b"the content of plain"

    with_worker(tmp_path, test)


@pytest.mark.long
def test_a_link_swapped_in_a_loop_never_leads_out_nor_to_what_is_forbidden(tmp_path: Path) -> None:
    async def test(worker: Worker, project: Path) -> None:
        over = threading.Event()

        def swap() -> None:
            targets = ["plain", "../outside", ".env", "sub", str(tmp_path / "outside")]
            while not over.is_set():
                for target in targets:
                    (project / "new").unlink(missing_ok=True)
                    (project / "new").symlink_to(target)
                    os.replace(project / "new", project / "swapped")

        (project / "swapped").symlink_to("plain")
        thread = threading.Thread(target=swap)
        thread.start()
        seen: set[object] = set()
        try:
            for _ in range(1500):
                try:
                    seen.add(await worker.read("/work/swapped"))
                except AgentOSError as refused:
                    seen.add(refused.name)
        finally:
            over.set()
            thread.join()
        read = {one for one in seen if isinstance(one, bytes)}
        assert read == {b"the content of plain"}
        assert {"EACCES", "EPOLICY"} <= seen

    with_worker(tmp_path, test, rule("forbid", NO_ENV))


def test_a_name_that_only_begins_alike_is_not_meant(tmp_path: Path) -> None:
    async def test(worker: Worker, project: Path) -> None:
        for name in ("working", "workingX"):
            (project / name).mkdir()
            (project / name / "x").write_text(name)
        assert await worker.read("/work/working/x") == b"working"
        with pytest.raises(EPERM):
            await worker.read("/work/workingX/x")

    with_worker(tmp_path, test, caps=("file:/work/working/**:read",))


@pytest.mark.parametrize(
    "path", ["/work/.env", "/work/sub/.env", "/work/link", "/work/folder/.env", "//work/./sub//.env"]
)
@pytest.mark.parametrize("name", ["/work", "its path on the host"])
def test_a_forbid_holds_under_both_names_of_a_workspace_and_through_every_link(
    tmp_path: Path, path: str, name: str
) -> None:
    async def test(worker: Worker, project: Path) -> None:
        (project / "link").symlink_to("sub/.env")
        (project / "folder").symlink_to("sub")
        said = path if name == "/work" else path.replace("/work", str(project), 1)
        for request in (Read(path=said), Write(path=said, data=b"x"), Remove(path=said)):
            with pytest.raises(EPOLICY) as refused:
                await worker.syscall(request)
            assert refused.value.detail["rule"] == "r"
        entry = [entry for entry, _ in worker.kernel.journal.scan() if entry.agent == worker.agent.id][-1]
        assert (entry.rule, entry.mode) == ("r", "enforce")
        assert (project / ".env").read_text() == "the content of .env"

    with_worker(tmp_path, test, rule("forbid", NO_ENV))


def test_a_rule_written_with_the_host_path_means_the_same_file(tmp_path: Path) -> None:
    async def test(worker: Worker, project: Path) -> None:
        for said in ("/work/sub/.env", f"{project}/sub/.env"):
            with pytest.raises(EPOLICY):
                await worker.read(said)
        assert await worker.read("/work/.env") == b"the content of .env"

    with_worker(tmp_path, test, rule("forbid", f"file:{tmp_path}/project/sub/.env:read"))


def linked(project: Path) -> None:
    """/work/config is another name of /work/conf.d, and /work/settings of that."""
    (project / "conf.d").mkdir()
    (project / "conf.d/prod.key").write_text("TOPSECRET")
    (project / "config").symlink_to("conf.d")
    (project / "settings").symlink_to("sub/../config")
    (project / "way").symlink_to("config")


@pytest.mark.parametrize("rules", ["/work/config/prod.key", "HOST/config/prod.key", "/work/config/**"])
@pytest.mark.parametrize("path", ["/work/config/prod.key", "HOST/config/prod.key", "/work/way/prod.key"])
def test_a_forbid_on_a_name_that_leads_through_a_link_holds_for_that_name(
    tmp_path: Path, path: str, rules: str
) -> None:
    host = str(tmp_path / "project")

    async def test(worker: Worker, project: Path) -> None:
        linked(project)
        said = path.replace("HOST", host)
        for request in (
            *(Read(path=said), Stat(path=said), Open(path=said, flags="r"), Watch(path=said)),
            *(Write(path=said, data=b"x"), Write(path=said, data=b"x", mode="append"), Remove(path=said)),
        ):
            with pytest.raises(EPOLICY) as refused:
                await worker.syscall(request)
            assert refused.value.detail["rule"] == "r"
        assert await worker.read("/work/plain") == b"the content of plain"
        assert (project / "conf.d/prod.key").read_text() == "TOPSECRET"

    with_worker(tmp_path, test, rule("forbid", f"file:{rules.replace('HOST', host)}:read,write,delete"))


def test_a_rule_that_asks_about_a_name_behind_a_link_asks(tmp_path: Path) -> None:
    async def test(worker: Worker, project: Path) -> None:
        linked(project)
        asking = asyncio.create_task(worker.read("/work/config/prod.key"))
        await until(lambda: bool(worker.kernel.approvals.pending()))
        assert worker.kernel.approvals.pending()[0].rules == ["operator:r"]
        asking.cancel()
        assert await worker.read("/work/conf.d/prod.key") == b"TOPSECRET"

    with_worker(tmp_path, test, rule("ask", "file:/work/config/prod.key:read"))


def test_a_layer_that_denies_by_default_wants_the_file_allowed_and_not_every_name_of_it(tmp_path: Path) -> None:
    async def test(worker: Worker, project: Path) -> None:
        linked(project)
        file = read(
            f'version = 1\ndefault = "deny"\nmode = "enforce"\n{rule("allow", "file:/work/conf.d/**:read")}'.encode(),
            "policy.toml",
            Layer.OPERATOR,
        )
        worker.kernel.authority.policies.current.take(Policy([file]))
        assert await worker.read("/work/config/prod.key") == b"TOPSECRET"
        with pytest.raises(EPOLICY):
            await worker.read("/work/plain")

    with_worker(tmp_path, test)


def test_what_was_opened_by_a_name_behind_a_link_is_closed_when_that_is_forbidden(tmp_path: Path) -> None:
    async def test(worker: Worker, project: Path) -> None:
        linked(project)
        behind = (await worker.syscall(Open(path="/work/config/prod.key", flags="r")))["handle"]
        plain = (await worker.syscall(Open(path="/work/conf.d/prod.key", flags="r")))["handle"]
        policy = HEAD.format(mode="enforce") + rule("forbid", "file:/work/config/**:read")
        await worker.kernel.governing.apply(policy.encode(), "local:0")
        with pytest.raises(EBADF):
            await worker.syscall(Read(handle=behind))
        assert (await worker.syscall(Read(handle=plain)))["data"] == b"TOPSECRET"

    with_worker(tmp_path, test)


def test_a_link_is_no_way_to_a_name_that_no_rule_can_say(tmp_path: Path) -> None:
    async def test(worker: Worker, project: Path) -> None:
        decomposed = unicodedata.normalize("NFD", "schlüssel")
        (project / decomposed).write_text("TOPSECRET")
        (project / "link").symlink_to(decomposed)
        with pytest.raises(EINVAL, match="NFC"):
            await worker.read("/work/link")
        assert [one["name"] for one in (await worker.syscall(List(path="/work")))["entries"]].count(decomposed) == 0

    with_worker(tmp_path, test, rule("forbid", "file:/work/schlüssel:read"))


def test_the_host_name_of_a_workspace_takes_no_name_that_the_tree_has(tmp_path: Path) -> None:
    async def test(worker: Worker, project: Path) -> None:
        files = worker.agent.files
        for taken in ("/work/inner", "/mem/working", "/policy", "/"):
            files.call_work(taken)
            assert files.resolve("/mem/working/x") == "/mem/working/x"
            assert files.resolve("/work/inner/x") == "/work/inner/x"

    with_worker(tmp_path, test)


def test_where_case_makes_no_difference_a_forbid_makes_none_either_and_an_allow_does(tmp_path: Path) -> None:
    """A second link under the other spelling is what a folding file system looks like to whoever asks for both."""

    async def test(worker: Worker, project: Path) -> None:
        (project / "plain.TXT").write_text("x")
        assert await worker.read("/work/plain.TXT") == b"x"  # here case does make a difference
        os.link(project / "plain.TXT", project / "PLAIN.txt")
        with pytest.raises(EPOLICY):
            await worker.read("/work/plain.TXT")
        os.link(project / "plain", project / "PLAIN")
        with pytest.raises(EPERM):
            await worker.read("/work/PLAIN")

    rules = rule("forbid", "file:/work/Plain.txt:read")
    with_worker(tmp_path, test, rules, caps=("file:/work/plain:read", "file:/work/plain.TXT:read"))
