"""Unmodified programs inside `agentctl run`: they work, what they wrote is in the diff, and no home is to be seen."""

import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Generator
from pathlib import Path

import pytest

from guests.agentctl import PEEK_JS, PEEK_PY, PEEK_SH, Machine, copy_of_python, program
from overlay import tree

pytestmark = pytest.mark.integration


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def holding(machine: Machine, *installations: str | Path) -> set[str]:
    """The entries of a home that a program itself lies in: the only ones that may be seen."""
    real = [Path(os.path.realpath(place)) for place in installations]
    return {path for path in machine.private_paths() if any(place.is_relative_to(path) for place in real)}


def need(command: str) -> str:
    found = shutil.which(command)
    if found is None:
        pytest.skip(f"{command}: not installed here")
    return found


# --- Python


WRITES = "open('written.txt', 'w').write('by python'); "


def test_python_of_a_venv_in_the_project_finds_its_packages(machine: Machine) -> None:
    venv = machine.project / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    site = next((venv / "lib").glob("python3*/site-packages"))
    (site / "greeting.py").write_text("TEXT = 'from the venv'\n")
    ran = machine.run(
        ".venv/bin/python", "-c", f"{PEEK_PY}{WRITES}import greeting, sys; print(greeting.TEXT, sys.prefix)"
    )
    assert (ran.code, ran.lines) == (0, [f"from the venv {venv}"]), ran.err
    assert ran.seen <= holding(machine, sys.base_prefix)
    assert {path: kind for path, kind in ran.changes.items() if "__pycache__" not in path} == {"written.txt": "add"}


def test_a_script_of_a_venv_elsewhere_in_the_home_runs_by_its_first_line(machine: Machine) -> None:
    venv = machine.home / "tools" / "greeter"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    site = next((venv / "lib").glob("python3*/site-packages"))
    (site / "greeting.py").write_text("TEXT = 'from the venv'\n")
    text = (
        f"#!{venv}/bin/python\n{PEEK_PY}\nimport greeting\nprint(greeting.TEXT)\nopen('written.txt', 'w').write('x')\n"
    )
    program(venv / "bin" / "greet", text)
    ran = machine.run("greet", PATH=f"{venv}/bin:{machine.env['PATH']}")
    assert (ran.code, ran.lines) == (0, ["from the venv"]), ran.err
    assert ran.seen <= holding(machine, sys.base_prefix, venv)
    assert ran.changes == {"written.txt": "add"}


def pyenv_root() -> Path:
    """The pyenv of whoever runs the tests, if there is one."""
    named = [os.environ.get("PYENV_ROOT"), str(Path.home() / ".pyenv")]
    base = Path(os.path.realpath(sys.base_prefix))
    named += [str(base.parent.parent)] if base.parent.name == "versions" else []
    for root in (Path(name) for name in named if name):
        try:
            if (root / "libexec" / "pyenv").exists() and any((root / "versions").iterdir()):
                return root
        except OSError:
            continue
    pytest.skip("pyenv: no pyenv with a version in it that this user can read")


def pyenv_version(root: Path) -> Path:
    versions = [path for path in sorted((root / "versions").iterdir()) if (path / "bin" / "python3").exists()]
    if not versions:
        pytest.skip("pyenv: it has no Python 3 installed")
    own = Path(os.path.realpath(sys.base_prefix))
    return own if own in versions else versions[-1]


def test_python_of_a_pyenv_by_its_version_shows_that_version_alone(machine: Machine) -> None:
    root = pyenv_root()
    version = pyenv_version(root)
    others = [path for path in (root / "versions").iterdir() if path != version]
    look = f"print([p for p in {[str(p) for p in others]!r} if os.path.exists(p)], sys.prefix)"
    script = f"{PEEK_PY}{WRITES}import sys, ssl, sqlite3, ctypes; {look}"
    ran = machine.run(version / "bin" / "python3", "-c", script, HOME=str(Path.home()))
    assert (ran.code, ran.lines) == (0, [f"[] {version}"]), ran.err
    assert ran.seen <= holding(machine, root)
    assert ran.changes == {"written.txt": "add"}


def test_python_of_a_pyenv_by_its_shim_runs_the_version_asked_for(machine: Machine) -> None:
    root = pyenv_root()
    version = pyenv_version(root)
    shim = root / "shims" / "python3"
    if not shim.exists():
        pytest.skip("pyenv: it has no shim for python3")
    ran = machine.run(
        "python3",
        "-c",
        f"{PEEK_PY}{WRITES}import sys; print(sys.prefix)",
        HOME=str(Path.home()),
        PYENV_VERSION=version.name,
        PATH=f"{root}/shims:{root}/bin:/usr/bin:/bin",
    )
    assert (ran.code, ran.lines) == (0, [str(version)]), ran.err
    assert ran.seen <= holding(machine, root)
    assert ran.changes == {"written.txt": "add"}


def test_python_of_a_pyenv_layout_in_the_home_runs_from_its_version(machine: Machine) -> None:
    version = copy_of_python(machine.home / ".pyenv" / "versions" / "3.11.99")
    program(machine.home / ".pyenv" / "libexec" / "pyenv", "#!/bin/sh\n")
    (machine.home / ".pyenv" / "versions" / "3.12.99").mkdir()
    script = f"{PEEK_PY}{WRITES}import sys, json; print(sys.prefix, os.path.exists(sys.prefix + '/../3.12.99'))"
    ran = machine.run(version / "bin" / "python3", "-c", script)
    assert (ran.code, ran.lines) == (0, [f"{version} False"]), ran.err
    assert ran.seen == {str(machine.home / ".pyenv")}
    assert ran.changes == {"written.txt": "add"}


def uv() -> str:
    beside = Path(sys.executable).parent / "uv"
    return str(beside) if os.access(beside, os.X_OK) else need("uv")


def test_python_where_uv_installs_it_runs_and_so_does_a_venv_made_from_it(machine: Machine) -> None:
    managed = machine.home / ".local/share/uv/python/cpython-3.11.99-linux-x86_64-gnu"
    copy_of_python(managed)
    (managed.parent / "cpython-3.12.99-linux-x86_64-gnu").mkdir()
    made = subprocess.run(
        [managed / "bin/python3", "-c", "import sys, encodings; print(sys.prefix)"], capture_output=True
    )
    if made.stdout.decode().strip() != str(managed):
        pytest.skip(f"uv: this interpreter cannot be moved: {made.stderr.decode().strip()[-200:]}")
    subprocess.run([managed / "bin/python3", "-m", "venv", "--without-pip", machine.project / ".venv"], check=True)
    look = "print(sys.base_prefix, os.path.exists(sys.base_prefix.replace('3.11', '3.12')))"
    for python in (managed / "bin/python3", machine.project / ".venv/bin/python"):
        ran = machine.run(python, "-c", f"{PEEK_PY}{WRITES}import sys; {look}", flags=["--discard"])
        assert (ran.code, ran.lines) == (0, [f"{managed} False"]), ran.err
        assert ran.seen == {str(machine.home / ".local")}
    assert not (machine.project / "written.txt").exists()


def wheel(folder: Path) -> Path:
    made = folder / "greeting-1.0-py3-none-any.whl"
    about = "greeting-1.0.dist-info"
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("greeting.py", "TEXT = 'from a wheel'\n")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", f"greeting.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n")
    return made


def test_uv_makes_a_venv_and_installs_a_wheel_inside_and_the_project_stays_clean(machine: Machine) -> None:
    tool = uv()
    wheel(machine.project)
    before = tree(machine.project)
    python = os.path.realpath(sys.executable)
    script = (
        f"{PEEK_SH}set -e; {tool} --offline -q venv --python {python} .venv;"
        f" {tool} --offline -q pip install --python .venv/bin/python ./greeting-1.0-py3-none-any.whl;"
        f" {tool} run --offline --no-project --python .venv/bin/python"
        " python -c 'import greeting; print(greeting.TEXT)'"
    )
    places = [prefix_of(place) for place in (tool, sys.base_prefix)]
    shown = [word for place in places if place != "/usr" for word in ("--mount", place)]
    ran = machine.run("bash", "-c", script, flags=shown)
    assert (ran.code, ran.lines) == (0, ["from a wheel"]), ran.err
    assert ran.seen <= holding(machine, tool, sys.base_prefix)
    assert any(path.endswith("site-packages/greeting.py") for path in ran.changes)
    assert all(path.startswith(".venv") for path in ran.changes)
    assert tree(machine.project) == before


def prefix_of(place: str) -> str:
    path = Path(os.path.realpath(place))
    return str(path.parent.parent if path.is_file() else path)


def test_uv_named_as_the_command_runs(machine: Machine) -> None:
    ran = machine.run(uv(), "--version")
    assert ran.code == 0, ran.err
    assert ran.out.startswith(b"uv ")
    assert ran.changes == {}


# --- Node


def test_node_runs_a_script_and_its_compiler_works(machine: Machine) -> None:
    """Without the right to make code at run time V8 has no WebAssembly at all."""
    need("node")
    code = (
        b"\0asm\1\0\0\0\1\7\1\x60\2\x7f\x7f\1\x7f\3\2\1\0\7\5\1\1a\0\0\n\t\1\7\0\x20\0\x20\1\x6a\x0b"  # (a, b) => a + b
    )
    add = f"new Uint8Array({list(code)})"
    (machine.project / "main.js").write_text(
        f"{PEEK_JS}\nconst add = new WebAssembly.Instance(new WebAssembly.Module({add})).exports.a;\n"
        "let sum = 0; for (let i = 0; i < 3e6; i++) sum = add(sum, i % 7);\n"
        "require('fs').writeFileSync('sum.txt', String(sum)); console.log(sum);\n"
    )
    ran = machine.run("node", "main.js")
    assert (ran.code, ran.lines) == (0, ["8999994"]), ran.err
    assert ran.seen <= holding(machine, need("node"))
    assert ran.changes == {"sum.txt": "add"}


def test_npm_runs_and_what_it_wrote_is_in_the_diff(machine: Machine) -> None:
    need("npm")
    ran = machine.run("npm", "--version")
    assert ran.code == 0, ran.err
    assert ran.out.split(b".")[0].isdigit()
    assert ran.changes == {}
    ran = machine.run("bash", "-c", f"{PEEK_SH}npm init -y >/dev/null && node -p 'require(\"./package.json\").name'")
    assert (ran.code, ran.lines) == (0, ["project"]), ran.err
    assert ran.seen <= holding(machine, need("npm"))
    assert ran.changes == {"package.json": "add"}


# --- shell, git, compilers, databases


def test_bash_has_pipes_process_substitution_and_here_documents(machine: Machine) -> None:
    (machine.project / "words").write_text("b\na\nb\n")
    script = (
        f"{PEEK_SH}set -eo pipefail; sort words | uniq -c | wc -l;"
        " comm -12 <(sort -u words) <(printf 'b\\nc\\n'); echo out | tee >(cat >copied) >/dev/null; wait;"
        " cat <<END >here\ndocument\nEND\n"
        "mkfifo pipe; echo through >pipe & cat pipe; wait; rm words pipe"
    )
    ran = machine.run("bash", "-c", script)
    assert (ran.code, ran.lines) == (0, ["2", "b", "through"]), ran.err
    assert ran.seen == set()
    assert ran.changes == {"copied": "add", "here": "add", "words": "delete"}
    assert (machine.project / "words").exists()


def git(*words: str | Path, cwd: Path) -> str:
    identity = ["-c", "user.name=op", "-c", "user.email=op@example.invalid", "-c", "init.defaultBranch=main"]
    env = {"PATH": os.environ["PATH"], "HOME": str(cwd), "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(["git", *identity, *map(str, words)], cwd=cwd, env=env, check=True, capture_output=True)
    return done.stdout.decode().strip()


def repository(at: Path) -> Path:
    at.mkdir(exist_ok=True)
    git("init", "-q", cwd=at)
    (at / "README").write_text("first\n")
    git("add", ".", cwd=at)
    git("commit", "-qm", "first", cwd=at)
    return at


def test_git_clones_a_repository_that_is_mounted_read_only(machine: Machine) -> None:
    need("git")
    upstream = repository(machine.home / "upstream")
    before = tree(upstream)
    script = (
        f"{PEEK_SH}set -e; git clone -q {upstream} clone; cd clone; echo second >>README; git commit -qam second;"
        f" git log --format=%s; exec 2>/dev/null; touch {upstream}/new && echo WROTE; git push -q && echo PUSHED; true"
    )
    ran = machine.run("bash", "-c", script, flags=["--mount", upstream])
    assert (ran.code, ran.lines) == (0, ["second", "first"]), ran.err
    assert ran.seen == {str(upstream)}
    assert ran.changes["clone/README"] == "add"
    assert all(path == "clone" or path.startswith("clone/") for path in ran.changes)
    assert tree(upstream) == before


def test_git_commits_in_the_overlay_and_the_hosts_history_is_unchanged(machine: Machine) -> None:
    need("git")
    repository(machine.project)
    head, before = git("rev-parse", "HEAD", cwd=machine.project), tree(machine.project)
    ran = machine.run(
        "bash", "-c", f"{PEEK_SH}echo more >>README && git commit -qam 'by the agent' && git log --format=%s,%an"
    )
    assert (ran.code, ran.lines) == (0, ["by the agent,agent", "first,op"]), ran.err
    assert ran.seen == set()
    assert ran.changes["README"] == "modify"
    assert {path for path in ran.changes if not path.startswith(".git/")} == {"README"}
    assert (git("rev-parse", "HEAD", cwd=machine.project), tree(machine.project)) == (head, before)


def test_gcc_and_make_build_a_project_and_the_committed_program_runs_on_the_host(machine: Machine) -> None:
    need("gcc")
    need("make")
    (machine.project / "add.c").write_text("int add(int a, int b) { return a + b; }\n")
    (machine.project / "main.c").write_text(
        '#include <stdio.h>\nint add(int, int);\nint main(void) { printf("%d\\n", add(40, 2)); return 0; }\n'
    )
    (machine.project / "Makefile").write_text("sum: main.o add.o\n\t$(CC) -o $@ $^\n%.o: %.c\n\t$(CC) -c -o $@ $<\n")
    ran = machine.run("bash", "-c", f"{PEEK_SH}make -s -j2 && ./sum")
    assert (ran.code, ran.lines) == (0, ["42"]), ran.err
    assert ran.seen == set()
    assert ran.changes == {"add.o": "add", "main.o": "add", "sum": "add"}
    assert not (machine.project / "sum").exists()
    assert ran.name is not None
    assert machine.agentctl("commit", ran.name, "--yes").code == 0
    assert subprocess.run([machine.project / "sum"], capture_output=True, check=True).stdout == b"42\n"


SQL = """
import sqlite3, threading
db = sqlite3.connect('notes.db', timeout=30)
print(db.execute('pragma journal_mode=wal').fetchone()[0])
db.execute('create table if not exists note (text)')
def write():
    own = sqlite3.connect('notes.db', timeout=30)
    for n in range(50):
        with own:
            own.execute('insert into note values (?)', (n,))
    own.close()
threads = [threading.Thread(target=write) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(db.execute('select count(*) from note').fetchone()[0], db.execute('pragma integrity_check').fetchone()[0])
"""


@pytest.mark.parametrize("there_before", [False, True], ids=["new", "of the project"])
def test_sqlite_writes_ahead_from_several_connections(machine: Machine, there_before: bool) -> None:
    (machine.project / "db.py").write_text(PEEK_PY + SQL)
    if there_before:
        subprocess.run([sys.executable, "-c", SQL], cwd=machine.project, check=True, capture_output=True)
    ran = machine.run("/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable, "db.py")
    assert (ran.code, ran.lines) == (0, ["wal", f"{200 * (1 + there_before)} ok"]), ran.err
    assert ran.seen <= holding(machine, sys.base_prefix)
    assert ran.changes == {"notes.db": "modify" if there_before else "add"}


def test_the_sqlite_program_reads_and_writes_the_projects_database(machine: Machine) -> None:
    need("sqlite3")
    script = (
        f"{PEEK_SH}sqlite3 notes.db 'create table note (text); insert into note values (7); select text * 6 from note'"
    )
    ran = machine.run("bash", "-c", script)
    assert (ran.code, ran.lines) == (0, ["42"]), ran.err
    assert ran.seen == set()
    assert ran.changes == {"notes.db": "add"}


# --- servers, places, sizes


SERVER = """
import http.server, os, sys, threading
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'from the own loopback')
    def log_message(self, *words): pass
server = http.server.HTTPServer(('127.0.0.1', 8000), Answer)
print('ready', flush=True)
server.serve_forever()
"""


@pytest.mark.parametrize("client", ["curl", "urllib"])
def test_a_server_on_the_guests_own_loopback_is_reached_by_its_other_processes(machine: Machine, client: str) -> None:
    """Directly: the proxy variables except the own loopback, and the address is nobody else's."""
    (machine.project / "server.py").write_text(SERVER)
    python = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
    call = f"{python} -c 'import urllib.request as u; print(u.urlopen(\"http://localhost:8000/\").read().decode())'"
    if client == "curl":
        need("curl")
        call = "curl -sS http://127.0.0.1:8000/; echo"
    # the server is this shell's child only as a pipe's writer: reading its first line is what waits for it
    script = f"{PEEK_SH}coproc SERVER {{ exec {python} server.py; }}; read -r line <&${{SERVER[0]}}; echo $line; {call}"
    ran = machine.run("bash", "-c", script)
    assert (ran.code, ran.lines) == (0, ["ready", "from the own loopback"]), ran.err
    assert ran.seen <= holding(machine, python)
    assert ran.changes == {}
    assert machine.records("connect") == []


def test_a_program_below_opt_runs_with_its_own_tree_and_nothing_else_of_opt(machine: Machine) -> None:
    if os.geteuid() != 0:
        pytest.skip("/opt: only root can put a program there, even in a mount namespace of its own")
    need("unshare")
    opt = machine.top / "opt"
    body = "cat /opt/tool/share/text; cat /opt/other/secret 2>/dev/null; echo done >done.txt"
    program(opt / "tool" / "bin" / "tool", f"#!/bin/sh\n{PEEK_SH}\n{body}\n")
    (opt / "tool" / "share").mkdir()
    (opt / "tool" / "share" / "text").write_text("from opt\n")
    (opt / "other").mkdir()
    (opt / "other" / "secret").write_text("of the neighbour\n")
    private = ["unshare", "-m", "sh", "-c", f'mount --bind {opt} /opt && exec "$@"', "sh"]
    ran = machine.run("/opt/tool/bin/tool", before=private)
    assert (ran.code, ran.lines) == (0, ["from opt"]), ran.err
    assert (ran.seen, ran.changes) == (set(), {"done.txt": "add"})


def test_a_program_may_reserve_4_gib_of_address_space(machine: Machine) -> None:
    reserve = "mmap.mmap(-1, 4 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)"  # MAP_NORESERVE
    script = f"{PEEK_PY}import mmap; m = {reserve}; m[-1] = 1; print(len(m), m[-1])"
    ran = machine.run(sys.executable, "-c", script)
    assert (ran.code, ran.lines) == (0, [f"{4 << 30} 1"]), ran.err
    assert ran.seen <= holding(machine, sys.base_prefix, sys.prefix)
    assert ran.changes == {}


# --- the network, through the product


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"from the host")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def service() -> Generator[http.server.ThreadingHTTPServer]:
    """A server on the host's loopback that notes what it was asked for."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


# 127.0.0.1 is excepted from the proxy, and a granted endpoint is put through there; this asks the proxy all the same.
BY_PROXY = ["--env", "NO_PROXY=", "--env", "no_proxy="]
CALLS = {
    "curl": "curl -sS -w '%{http_code}' -o body URL; echo; cat body; rm body",
    "urllib": """/usr/bin/python3 -c '
from urllib.request import urlopen
answer = urlopen("URL")
print(answer.status)
print(answer.read().decode())'""",
}


@pytest.mark.parametrize(("way", "protocol"), [([], "forward"), (BY_PROXY, "http")], ids=["unmodified", "by the proxy"])
@pytest.mark.parametrize("client", CALLS)
def test_an_endpoint_on_the_hosts_loopback_is_reached_with_its_flag(
    machine: Machine, service, client: str, way: list[str], protocol: str
) -> None:
    need("curl" if client == "curl" else "/usr/bin/python3")
    port = service.server_address[1]
    call = CALLS[client].replace("URL", f"http://127.0.0.1:{port}/hello")
    ran = machine.run("bash", "-c", PEEK_SH + call, flags=["--net", f"127.0.0.1:{port}", *way])
    assert (ran.code, ran.lines) == (0, ["200", "from the host"]), ran.err
    assert service.asked == ["/hello"]
    assert (ran.seen, ran.changes) == (set(), {})
    assert "refused" not in ran.err
    told = [(entry["protocol"], entry["verdict"], entry["done"]) for entry in machine.records("connect")]
    assert told == [(protocol, "allow", False), (protocol, "allow", True)]


def test_without_the_flag_it_is_refused_and_told_once_with_the_flag_that_allows_it(machine: Machine, service) -> None:
    need("curl")
    port = service.server_address[1]
    url = f"http://127.0.0.1:{port}/hello"
    script = f"{PEEK_SH}for n in 1 2 3; do curl -s -o /dev/null -w '%{{http_code}}\\n' {url}; done"
    ran = machine.run("bash", "-c", script, flags=BY_PROXY)
    assert (ran.code, ran.lines) == (0, ["403", "403", "403"]), ran.err
    assert service.asked == []
    told = [line for line in ran.err.splitlines() if line.startswith("refused")]
    assert told == [f"refused  connect 127.0.0.1:{port}  3×   allow: --net 127.0.0.1:{port}"]
    assert (ran.seen, ran.changes) == (set(), {})
    again = machine.run("bash", "-c", script, flags=told[0].rpartition("allow: ")[2].split())
    assert again.lines == ["200", "200", "200"], "the flag that was named must be the right one"


@pytest.mark.parametrize("granted", [False, True], ids=["no grant", "another port granted"])
def test_past_the_proxy_the_hosts_loopback_is_not_there(machine: Machine, service, granted: bool) -> None:
    need("curl")
    port = service.server_address[1]
    call = f"curl -s --noproxy '*' http://$host:{port}/direct"
    script = f"{PEEK_SH}for host in 127.0.0.1 [::1] 0.0.0.0; do {call}; echo $?; done"
    ran = machine.run("bash", "-c", script, flags=["--net", f"127.0.0.1:{port - 1}"] if granted else [])
    assert ran.lines == ["7", "7", "7"], ran.err  # curl: could not connect
    assert service.asked == []


def test_an_unknown_host_is_refused_before_its_name_is_looked_up(machine: Machine) -> None:
    need("curl")
    script = f"{PEEK_SH}curl -s -o /dev/null -w '%{{http_code}}\\n' http://nowhere.example/; true"
    ran = machine.run("bash", "-c", script)
    assert ran.lines == ["403"], ran.err
    assert "refused  connect nowhere.example:80  1×   allow: --net nowhere.example" in ran.err
    assert [entry["address"] for entry in machine.records("connect")] == [""]


def test_the_record_of_a_run_says_what_was_decided_before_it_began(machine: Machine) -> None:
    ran = machine.run("sh", "-c", "echo x >new", flags=["--net", "example.org"])
    assert ran.code == 0
    (spawn,), (spawned,), (end,) = (machine.records(event) for event in ("spawn", "spawned", "exit"))
    assert spawn["net"] == ["example.org"]
    assert spawn["workspace"]["mode"] == "overlay"
    assert spawned["level"] in ("S2", "S3")
    assert end["code"] == 0
    assert json.dumps(spawn).count(str(machine.state)) <= 1


def test_a_connection_that_was_allowed_and_failed_is_told_with_its_reason(machine: Machine) -> None:
    """A name of `.invalid` never resolves, and nobody listens where a socket was just closed."""
    need("curl")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    urls = f"http://nowhere.invalid/ http://nowhere.invalid/ http://127.0.0.1:{port}/"
    script = f"{PEEK_SH}for url in {urls}; do curl -s -o /dev/null -w '%{{http_code}}\\n' $url; done; true"
    ran = machine.run("bash", "-c", script, flags=["--net", "nowhere.invalid", "--net", f"127.0.0.1:{port}", *BY_PROXY])
    assert ran.lines == ["502", "502", "502"], ran.err
    first, second = [line for line in ran.err.splitlines() if line.startswith("failed")]
    assert re.fullmatch(r"failed  connect nowhere.invalid:80: nowhere.invalid d.* not resolve.*  2×", first)
    assert second.startswith(f"failed  connect 127.0.0.1:{port}: ")
    assert second.endswith("refused  1×")
