"""Attempts by well-known tools that run or write something else on the side: find -exec, git hooks, tar, sed, vim, …

A sandbox does not promise that they run nothing: it promises that whatever they run stays inside. So each command line
is given a file to make twice: first in the workspace, where it must work, or it proves nothing; then in places outside
the write set, where it must not. Without a sandbox, a throw-away directory is the outside, and it must work there too.
"""

import contextlib
import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hostile.attempts import NotHere, Refused, Targets, attempt

TOOLS = "tool wrappers"
PATH = "/usr/local/bin:/usr/bin:/bin"
PYTHON = shutil.which("python3", path=PATH) or sys.executable  # one that an ordinary user can run, too
SECONDS = 8

# One command line: words in which {m} is a file to make, {x} a program that makes it, {d} a directory of one's own with
# a file `f` in it. A line with {m} is run for every place; one with {x} once, because the program tries all places.
Lines = dict[str, list[str]]
QUIET = subprocess.DEVNULL


@dataclass(frozen=True)
class Bench:
    """A scratch directory in the workspace, the places to reach from it, and what tools get."""

    top: str
    places: list[str]

    def marks(self, line: str) -> list[str]:
        """The first lies in the workspace, the others outside."""
        return [
            f"{place}/mark-{os.getpid()}-{line.replace(' ', '-').replace('/', '-')}"
            for place in (self.top, *self.places)
        ]

    def run(self, words: list[str], mark: str, **env: str) -> None:
        program = f"{self.top}/own"
        given = {
            "PATH": PATH,
            "HOME": self.top,
            "TMPDIR": self.top,
            "LANG": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
        }

        def fill(text: str) -> str:
            return text.replace("{m}", mark).replace("{x}", program).replace("{d}", self.top)

        given |= {name: fill(value) for name, value in env.items()}
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            filled = [fill(word) for word in words]
            subprocess.run(filled, cwd=self.top, env=given, stdin=QUIET, stdout=QUIET, stderr=QUIET, timeout=SECONDS)

    def write(self, name: str, text: str, mode: int = 0o644) -> None:
        path = f"{self.top}/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, mode)


@contextlib.contextmanager
def bench(t: Targets) -> Iterator[Bench]:
    top = f"{t['work']}/bench{os.getpid()}"
    os.mkdir(top)
    made = Bench(top, t["outside"])
    made.write("f", "one\n")
    # A host path that does not exist here may be made in our own /tmp: then the host alone can tell (it is compared).
    missing = [place for place in made.places if not os.path.isdir(place)]
    try:
        yield made
    finally:
        for path in (top, *missing):
            shutil.rmtree(path, ignore_errors=True)


def wrappers(t: Targets, lines: Lines, prepare: Callable[[Bench], None] | None = None, **env: str) -> str:
    """Try each line inside and outside. Succeeds if any made its file outside; where nothing stops it, all must."""
    lines = {name: words for name, words in lines.items() if shutil.which(words[0], path=PATH)}
    if not lines:
        raise NotHere("none of these tools is installed")
    worked: list[str] = []
    escaped: list[str] = []
    with bench(t) as made:
        judged = {place for place in made.places if os.path.isdir(place)}
        for name, words in lines.items():
            marks = made.marks(name)
            made.write("own", "#!/bin/sh\n" + "".join(f"touch {mark}\n" for mark in marks), 0o755)
            if prepare:
                prepare(made)
            for mark in marks[:1] if any("{x}" in word for word in words) else marks:
                made.run(words, mark, **env)
            worked += [name] if os.path.lexists(marks[0]) else []
            escaped += [name] if any(os.path.lexists(m) for m in marks[1:] if os.path.dirname(m) in judged) else []
    if idle := sorted(set(lines) - set(worked)):
        raise RuntimeError(f"proves nothing, because it did not even work in the workspace: {', '.join(idle)}")
    if escaped and not t.get("inside") and escaped != worked:
        raise RuntimeError(f"worked in the workspace only: {sorted(set(worked) - set(escaped))}")
    if escaped:
        return f"{len(escaped)} of {len(worked)}: {', '.join(escaped)}"
    raise Refused(f"{len(worked)} command lines worked inside and made nothing outside")


@attempt("98", "find: -exec, -execdir, -fprintf, -fls", TOOLS, "H", "namespaces landlock")
def find(t: Targets) -> object:
    start = ["find", "{d}/f", "-maxdepth", "0"]
    lines = {
        "-exec": [*start, "-exec", "{x}", ";"],
        "-exec +": [*start, "-exec", "sh", "-c", "{x}", "x", "{}", "+"],
        "-execdir": [*start, "-execdir", "{x}", ";"],
        "-fprintf": [*start, "-fprintf", "{m}", "x"],
        "-fprint0": [*start, "-fprint0", "{m}"],
        "-fls": [*start, "-fls", "{m}"],
    }
    return wrappers(t, lines)


@attempt("98b", "find -delete, rm and mv on a file of a read-only mount", TOOLS, "H", "namespaces landlock")
def find_delete(t: Targets) -> object:
    victim = t["victim_file"]
    if not os.path.exists(victim):
        raise NotHere("no victim")
    for words in (["find", victim, "-delete"], ["rm", "-f", victim], ["mv", victim, f"{t['work']}/taken"]):
        subprocess.run(words, env={"PATH": PATH}, stdout=QUIET, stderr=QUIET)
        if not os.path.exists(victim):
            return f"{words[0]}: it is gone"
    raise Refused("it is still there")


@attempt("99", "git: ssh, monitor, aliases, hooks, filters, exec path, output", TOOLS, "H", "namespaces landlock")
def git(t: Targets) -> object:
    def prepare(made: Bench) -> None:
        """A repository with one commit and a change, a hook, and a command of our own."""
        made.write("r/f", "two\n")
        if os.path.exists(f"{made.top}/r/.git"):
            return
        made.write(".gitconfig", "[user]\nname = x\nemail = x@x\n[init]\ndefaultBranch = main\n[gc]\nauto = 0\n")
        made.write("r/f", "one\n")
        for words in (["init", "-q"], ["add", "f"], ["commit", "-qm", "x"]):
            made.run(["git", "-C", "{d}/r", *words], "")
        made.write("r/f", "two\n")
        made.write("hooks/pre-commit", f"#!/bin/sh\n{made.top}/own\nfalse\n", 0o755)
        made.write("exec/git-own", f"#!/bin/sh\n{made.top}/own\n", 0o755)
        made.write("attributes", "f filter=own diff=own\n")

    here = ["git", "-C", "{d}/r"]
    marked = [*here, "-c", "core.attributesFile={d}/attributes"]
    lines = {
        "fsmonitor": [*here, "-c", "core.fsmonitor={x};:", "status"],
        "sshCommand": [*here, "-c", "core.sshCommand={x};:", "ls-remote", "ssh://nobody.test/x"],
        "alias": [*here, "-c", "alias.own=!{x}", "own"],
        "external diff": [*here, "-c", "diff.external={x};:", "diff"],
        "text conversion": [*marked, "-c", "diff.own.textconv={x};cat", "diff"],
        "editor": [*here, "-c", "core.editor={x};false", "commit", "--amend", "--no-verify"],
        "hook": [*here, "-c", "core.hooksPath={d}/hooks", "-c", "x.x={x}", "commit", "-qam", "x"],
        "filter": [*marked, "-c", "filter.own.clean={x};cat", "add", "f"],
        "exec path": ["git", "-c", "x.x={x}", "--exec-path={d}/exec", "own"],
        "external transport": [*here, "-c", "protocol.ext.allow=always", "ls-remote", "ext::{x}"],
        "grep pager": [*here, "grep", "-O{x};:", "two"],
        "output": [*here, "diff", "--output={m}"],
        "archive": [*here, "archive", "--output={m}", "HEAD"],
        "bundle": [*here, "bundle", "create", "-q", "{m}", "HEAD"],
    }
    return wrappers(t, lines, prepare)


@attempt("100", "tar: checkpoint action, to-command, compressor, absolute names", TOOLS, "H", "namespaces landlock")
def tar(t: Targets) -> object:
    def prepare(made: Bench) -> None:
        made.write("f", "one\n")
        made.run(["tar", "-cf", "a.tar", "f"], "")

    lines = {
        "checkpoint": ["tar", "-cf", "/dev/null", "--checkpoint=1", "--checkpoint-action=exec={x}", "f"],
        "to-command": ["tar", "-xf", "a.tar", "--to-command={x}"],
        "compressor": ["tar", "-I", "sh -c '{x};cat'", "-cf", "out.tar", "f"],
        "decompressor": ["tar", "--use-compress-program=sh -c '{x};cat'", "-xf", "a.tar"],
        "archive": ["tar", "-cf", "{m}", "f"],
        "absolute name": ["sh", "-c", "tar -P --transform=s,^f,{m}, -cf - f | tar -P -xf -"],
        "index": ["tar", "-v", "--index-file={m}", "-cf", "out.tar", "f"],
        "snapshot": ["tar", "--listed-incremental={m}", "-cf", "out.tar", "f"],
    }
    return wrappers(t, lines, prepare)


@attempt("101", "sed, awk, xargs, env, timeout and other ways to run or write", TOOLS, "H", "namespaces landlock")
def small_tools(t: Targets) -> object:
    lines = {
        "sed e": ["sed", "1e {x}", "f"],
        "awk system": ["awk", 'BEGIN { system("{x}") }'],
        "awk pipe": ["awk", 'BEGIN { print "x" | "{x}" }'],
        "xargs": ["sh", "-c", "echo x | xargs {x}"],
        "env": ["env", "-i", "PATH=/usr/bin:/bin", "{x}"],
        "timeout": ["timeout", "5", "{x}"],
        "nice": ["nice", "{x}"],
        "nohup": ["nohup", "{x}"],
        "setsid": ["setsid", "-w", "{x}"],
        "flock": ["flock", "f", "{x}"],
        "split": ["split", "--filter={x}", "f"],
        "make": ["sh", "-c", "printf 'all:;{x}' | make -f -"],
        "sed w": ["sed", "w {m}", "f"],
        "awk print": ["awk", 'BEGIN { print "x" > "{m}" }'],
        "sort -o": ["sort", "-o", "{m}", "f"],
        "dd": ["dd", "if=f", "of={m}"],
        "install": ["install", "f", "{m}"],
        "ln -s": ["ln", "-s", "f", "{m}"],
        "perl": ["perl", "-e", 'open(F, ">", "{m}")'],
        "truncate": ["truncate", "-s", "1", "{m}"],
    }
    return wrappers(t, lines)


@attempt("102", "ssh, curl, wget: proxy command, config, output, askpass", TOOLS, "H", "namespaces landlock")
def net_tools(t: Targets) -> object:
    lines = {
        "ssh ProxyCommand": ["ssh", "-F", "none", "-o", "ProxyCommand={x}", "nobody.test"],
        "ssh -F": ["sh", "-c", "printf 'Host *\\n ProxyCommand {x}\\n' >own.conf; ssh -F own.conf nobody.test"],
        "ssh -E": ["ssh", "-F", "none", "-E", "{m}", "-o", "ProxyCommand=false", "nobody.test"],
        "scp -S": ["scp", "-q", "-S", "{x}", "f", "x:y"],
        "curl -o": ["curl", "-s", "-o", "{m}", "file://{d}/f"],
        "curl -K": ["sh", "-c", "printf 'url = file://{d}/f\\noutput = {m}\\n' | curl -s -K -"],
        "curl --stderr": ["curl", "--stderr", "{m}", "file://{d}/none"],
        "wget -o": ["wget", "-t", "1", "-T", "1", "-o", "{m}", "http://127.0.0.1:9/"],
        "wget --use-askpass": ["wget", "-t", "1", "-T", "1", "--use-askpass={x}", "http://127.0.0.1:9/"],
    }
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:  # ssh refuses to run for a user without an account, as the one of the control may be
        lines = {name: words for name, words in lines.items() if not name.startswith(("ssh", "scp"))}
    return wrappers(t, lines)


@attempt("103", "install scripts of npm packages", TOOLS, "H", "namespaces landlock", kinds=("guest",))
def npm_scripts(t: Targets) -> object:
    def prepare(made: Bench) -> None:
        package = {"name": "own", "version": "1.0.0", "scripts": {"install": f"{made.top}/own"}}
        made.write("package/package.json", json.dumps(package))

    quiet = ["--offline", "--no-audit", "--no-fund", "--no-update-notifier", "--cache={d}/cache"]
    return wrappers(t, {"npm install": ["npm", "install", "--prefix", "{d}/package", "--x={x}", *quiet]}, prepare)


@attempt("103b", "set-up scripts and start-up files of Python packages", TOOLS, "H", "namespaces landlock")
def python_scripts(t: Targets) -> object:
    def prepare(made: Bench) -> None:
        run = f"import subprocess; subprocess.run([{made.top + '/own'!r}], stdin=subprocess.DEVNULL)\n"
        for name in ("setup.py", "sitecustomize.py", "own.pth"):
            made.write(f"package/{name}", run)

    lines = {
        "setup.py": [PYTHON, "-I", "{d}/package/setup.py", "install", "{x}"],
        "sitecustomize": [PYTHON, "-c", "pass", "{x}"],
        "pth": [PYTHON, "-I", "-c", "import site; site.addsitedir('{d}/package')", "{x}"],
    }
    return wrappers(t, lines, prepare, PYTHONPATH="{d}/package")


@attempt("104", "a program of the workspace under a well-known name", TOOLS, "H", "namespaces landlock")
def shadowed(t: Targets) -> object:
    def prepare(made: Bench) -> None:
        made.write("bin/ls", f"#!/bin/sh\n{made.top}/own\n", 0o755)
        made.write("ls", f"#!/bin/sh\n{made.top}/own\n", 0o755)

    lines = {
        "PATH": ["sh", "-c", "PATH={d}/bin:$PATH; ls f; : {x}"],
        "./ls": ["sh", "-c", "./ls f; : {x}"],
        "empty PATH entry": ["sh", "-c", "PATH=:$PATH; ls f; : {x}"],
        "function": ["sh", "-c", "ls() { {x}; }; ls f"],
        "start-up file": ["env", "BASH_ENV={d}/ls", "bash", "-c", ": {x}"],
    }
    return wrappers(t, lines, prepare)


@attempt("105", "editors that run or write: vim -c, --cmd, :w", TOOLS, "H", "namespaces landlock")
def editors(t: Targets) -> object:
    vim = ["vim", "-es", "-N", "-u", "NONE", "-i", "NONE"]
    lines = {
        "vim !": [*vim, "-c", "silent !{x}", "-c", "qa!"],
        "vim system": [*vim, "--cmd", "call system('{x}')", "-c", "qa!", "f"],
        "vim :w": [*vim, "-c", "w! {m}", "-c", "qa!", "f"],
    }
    return wrappers(t, lines)
