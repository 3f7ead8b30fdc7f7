"""What a guest is shown and told: layouts are built with real files and links, venvs with the real `venv` module."""

import os
import shutil
import string
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.abi.errors import EACCES, EINVAL, ENOENT, AgentOSError
from agent_os.kernel import guest
from agent_os.kernel.guest import Mount, Program, parse_duration, parse_env, parse_mount

pytestmark = pytest.mark.both_uids("root reads and writes what no other user may")

DEFAULT = "/usr/local/bin:/usr/bin:/bin"


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def link(path: Path, target: str | Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return path


def plain(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def python_prefix(root: Path, version: str = "3.12") -> Path:
    """An installed Python as far as its layout goes: a program, a link to it, a standard library."""
    program(root / "bin" / f"python{version}", "\x7fELF stands for one")
    link(root / "bin" / "python3", f"python{version}")
    link(root / "bin" / "python", "python3")
    plain(root / "lib" / f"python{version}" / "os.py")
    return root


def node_prefix(root: Path) -> Path:
    program(root / "bin" / "node", "\x7fELF stands for one")
    program(root / "lib/node_modules/npm/bin/npm-cli.js", "#!/usr/bin/env node\n")
    link(root / "bin" / "npm", "../lib/node_modules/npm/bin/npm-cli.js")
    return root


def venv(root: Path, base_bin: Path) -> Path:
    link(root / "bin" / "python", base_bin / "python3")
    link(root / "bin" / "python3", "python")
    plain(root / "pyvenv.cfg", f"home = {base_bin}\ninclude-system-site-packages = false\n")
    return root


@dataclass
class Host:
    home: Path
    work: Path

    def resolve(self, *argv: str | Path, path: Sequence[Path | str] = ()) -> Program:
        return guest.resolve(
            [str(word) for word in argv],
            cwd=self.work,
            path=":".join(map(str, [*path, *DEFAULT.split(":")])),
            home=self.home,
            visible=[Path("/usr"), self.work],
        )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    root = Path(os.path.realpath(tmp_path))
    made = Host(root / "people" / "op", root / "people" / "op" / "project")
    made.work.mkdir(parents=True)
    return made


# --- finding the command


def test_a_system_command_needs_nothing(host: Host) -> None:
    found = host.resolve("sh", "-c", "true")
    assert Path(found.argv[0]).is_absolute()
    assert found.argv[1:] == ("-c", "true")
    assert (found.prefixes, found.notes, found.path) == ((), (), DEFAULT)


def test_a_relative_command_is_looked_up_from_the_working_directory(host: Host) -> None:
    program(host.work / "tools" / "go now")
    assert host.resolve("./tools/go now").argv == (str(host.work / "tools" / "go now"),)
    assert host.resolve("tools/../tools/go now").argv == (str(host.work / "tools" / "go now"),)


def test_path_lookup_passes_over_directories_and_files_that_cannot_run(host: Host) -> None:
    (host.work / "a" / "tool").mkdir(parents=True)
    plain(host.work / "b" / "tool")
    right = program(host.work / "c" / "tool")
    assert host.resolve("tool", path=[host.work / "a", host.work / "b", host.work / "c"]).argv == (str(right),)


@pytest.mark.parametrize(
    ("argv", "error", "code", "hint"),
    [
        ([], EINVAL, "command.missing", "agentctl run -- "),
        ([""], EINVAL, "command.missing", "agentctl run -- "),
        (["a\0b"], EINVAL, "command.malformed", ""),
        (["frobnicat"], ENOENT, "command.unknown", "did you mean frobnicate"),
        (["./frobnicate"], ENOENT, "command.unknown", "give the path"),
        (["echo hi && ls"], ENOENT, "command.unknown", "-- bash -c 'echo hi && ls'"),
        (["cd", "some where"], ENOENT, "command.unknown", "bash -c "),
        (["sh script.sh"], ENOENT, "command.unknown", "-- sh script.sh"),
        (["./plain"], EACCES, "command.not_executable", "chmod +x "),
        (["plain"], EACCES, "command.not_executable", "chmod +x "),
        (["./bin"], EINVAL, "command.directory", ""),
        (["./loop"], ENOENT, "command.unknown", ""),
        (["./dangling"], ENOENT, "command.unknown", ""),
    ],
)
def test_a_command_that_cannot_run_is_explained(
    host: Host, argv: list[str], error: type[AgentOSError], code: str, hint: str
) -> None:
    program(host.work / "bin" / "frobnicate")
    plain(host.work / "plain")
    plain(host.work / "bin" / "plain")
    link(host.work / "loop", "loop")
    link(host.work / "dangling", "nowhere")
    with pytest.raises(error) as caught:
        host.resolve(*argv, path=[host.work / "bin"])
    assert caught.value.code == code
    assert hint in caught.value.hint


def test_a_script_whose_interpreter_is_gone_says_so(host: Host) -> None:
    program(host.work / "old", "#!/nowhere/python3\n")
    program(host.work / "dos", "#!/bin/sh\r\n")
    program(host.work / "env", "#!/usr/bin/env no-such-language\n")
    for name, word in (("old", "/nowhere/python3"), ("dos", "carriage return"), ("env", "no-such-language")):
        with pytest.raises(ENOENT, match=word) as caught:
            host.resolve(f"./{name}")
        assert caught.value.code == "command.interpreter"


# --- installations


@pytest.mark.integration
def test_a_real_venv_in_the_workspace_brings_the_python_it_was_made_from(host: Host) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", host.work / ".venv"], check=True)
    found = host.resolve(".venv/bin/python", "-V")
    base = Path(os.path.realpath(sys.base_prefix))
    assert found.argv[0] == str(host.work / ".venv/bin/python")
    assert host.work / ".venv" in found.roots
    assert found.prefixes == (() if base.is_relative_to("/usr") else (base,))


@pytest.mark.integration
def test_a_real_venv_elsewhere_is_shown_whole(host: Host) -> None:
    home = host.home / "envs" / "with space"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    program(home / "bin" / "tool", f"#!/bin/sh\n'''exec' \"{home}/bin/python\" \"$0\" \"$@\"\n' '''\n")
    found = host.resolve("tool", path=[home / "bin"])
    assert home in found.prefixes
    assert found.path.split(":")[0] == str(home / "bin")
    assert host.home not in found.prefixes


def test_a_venv_made_in_the_middle_of_the_workspace_still_finds_its_base(host: Host) -> None:
    base = python_prefix(host.home / ".pyenv/versions/3.12.1")
    venv(host.work, base / "bin")
    (host.work / ".git").mkdir()
    assert host.resolve("bin/python").prefixes == (base,)


def test_a_script_of_a_venv_reaches_the_base_through_shebang_and_links(host: Host) -> None:
    base = python_prefix(host.home / ".local/share/uv/python/cpython-3.12.4-linux-x86_64-gnu")
    minor = link(host.home / ".local/share/uv/python/cpython-3.12-linux-x86_64-gnu", base.name)
    tool = venv(host.home / ".local/share/uv/tools/ruff", minor / "bin")
    program(tool / "bin" / "ruff", f"#!{tool}/bin/python\n")
    link(host.home / ".local/bin/ruff", tool / "bin" / "ruff")
    found = host.resolve("ruff", path=[host.home / ".local/bin"])
    assert found.argv == (str(tool / "bin" / "ruff"),)
    assert set(found.prefixes) == {base, minor, tool}
    assert found.path == f"{tool}/bin:{DEFAULT}"


def test_a_pyenv_shim_brings_the_pyenv_root_and_its_variables(host: Host) -> None:
    root = host.home / ".pyenv"
    program(root / "libexec" / "pyenv")
    (root / ".git").mkdir()
    python_prefix(root / "versions" / "3.12.1")
    program(root / "shims" / "python", f'#!/usr/bin/env bash\nexec "{root}/libexec/pyenv" exec python "$@"\n')
    found = host.resolve("python", path=[root / "shims"])
    assert (found.prefixes, found.argv) == ((root,), (str(root / "shims" / "python"),))
    told = environment(host_env={"PYENV_VERSION": "3.12.1", "PYENV_ROOT": "/elsewhere"}, program=found)
    assert (told["PYENV_ROOT"], told["PYENV_VERSION"]) == (str(root), "3.12.1")


def test_a_pyenv_version_named_directly_brings_that_version_only(host: Host) -> None:
    root = host.home / ".pyenv"
    program(root / "libexec" / "pyenv")
    version = python_prefix(root / "versions" / "3.12.1")
    python_prefix(root / "versions" / "3.13.0", "3.13")
    found = host.resolve(version / "bin" / "python")
    assert found.prefixes == (version,)
    assert "PYENV_ROOT" not in environment(host_env={"PYENV_ROOT": str(root)}, program=found)


def test_npm_of_nvm_brings_its_node_version(host: Host) -> None:
    node = node_prefix(host.home / ".nvm/versions/node/v20.1.0")
    found = host.resolve("npm", "test", path=[node / "bin"])
    assert (found.argv[0], found.prefixes) == (str(node / "bin" / "npm"), (node,))
    assert found.path == f"{node}/bin:{DEFAULT}"


def test_fnm_is_reached_past_its_temporary_link(host: Host) -> None:
    node = node_prefix(host.home / ".local/share/fnm/node-versions/v20/installation")
    shell = link(host.home / ".fnm_multishells" / "123", node)
    found = host.resolve("node", path=[shell / "bin"])
    assert node in found.prefixes
    assert host.home not in found.prefixes


def test_a_binary_of_the_workspaces_own_node_modules_needs_only_node(host: Host) -> None:
    node = node_prefix(host.home / ".nvm/versions/node/v20.1.0")
    program(host.work / "node_modules/x/cli.js", "#!/usr/bin/env node\n")
    link(host.work / "node_modules/.bin/x", "../x/cli.js")
    found = host.resolve("node_modules/.bin/x", path=[node / "bin"])
    assert (found.argv[0], found.prefixes) == (str(host.work / "node_modules/.bin/x"), (node,))


def test_a_node_package_below_dot_local_brings_its_node_modules_and_no_more(host: Host) -> None:
    node = node_prefix(host.home / ".nvm/versions/node/v20.1.0")
    cli = program(host.home / ".local/lib/node_modules/@x/y/cli.js", "#!/usr/bin/env node\n")
    link(host.home / ".local/bin/y", "../lib/node_modules/@x/y/cli.js")
    found = host.resolve("y", path=[host.home / ".local/bin", node / "bin"])
    assert found.argv == (str(cli),)
    assert set(found.prefixes) == {node, host.home / ".local/lib/node_modules"}


def test_a_conda_environment_is_shown_without_its_neighbours(host: Host) -> None:
    base = python_prefix(host.home / "miniconda3")
    (base / "conda-meta").mkdir()
    env = python_prefix(base / "envs" / "work")
    (env / "conda-meta").mkdir()
    found = host.resolve("python", path=[env / "bin", base / "bin"])
    assert found.prefixes == (env,)
    assert environment(host_env={"CONDA_PREFIX": str(env)}, program=found)["CONDA_PREFIX"] == str(env)
    assert "CONDA_PREFIX" not in environment(host_env={"CONDA_PREFIX": str(base)}, program=found)


def test_a_link_to_a_uv_python_is_replaced_by_the_python_it_leads_to(host: Host) -> None:
    base = python_prefix(host.home / ".local/share/uv/python/cpython-3.12.4-linux-x86_64-gnu")
    link(host.home / ".local/bin/python3.12", base / "bin" / "python3.12")
    program(host.work / "run", "#!/usr/bin/env -S python3.12 -u\n")
    direct = host.resolve("python3.12", path=[host.home / ".local/bin"])
    by_env = host.resolve("./run", path=[host.home / ".local/bin"])
    assert direct.argv == (str(base / "bin" / "python3.12"),)
    for found in (direct, by_env):
        assert found.prefixes == (base,)
        assert found.path == f"{base}/bin:{DEFAULT}"


def test_a_venv_with_a_copied_python_finds_its_base_by_its_configuration(host: Host) -> None:
    base = python_prefix(host.home / "py")
    program(host.work / ".venv/bin/python", "\x7fELF stands for a copy")
    plain(host.work / ".venv/pyvenv.cfg", f"home = {base}/bin\n")
    assert host.resolve(".venv/bin/python").prefixes == (base,)


def test_a_stray_link_that_others_name_is_shown_as_a_file(host: Host) -> None:
    base = python_prefix(host.home / "py")
    stray = link(host.home / "bin" / "python3", base / "bin" / "python3")
    link(host.work / "by-link", stray)
    program(host.work / "by-shebang", f"#!{stray}\n")
    for name in ("./by-link", "./by-shebang"):
        assert set(host.resolve(name).prefixes) == {base, stray}


def test_a_script_run_by_a_script_is_followed(host: Host) -> None:
    base = python_prefix(host.home / "py")
    inner = program(host.home / "bin" / "inner", f"#!{base}/bin/python\n")
    program(host.work / "outer", f"#!{inner}\n")
    assert set(host.resolve("./outer").prefixes) == {base, inner}


# --- what is never shown


def assert_nothing_private(host: Host, found: Program) -> None:
    for path in found.prefixes:
        assert not host.home.is_relative_to(path), path
        assert path not in {host.home / name for name in (".local", ".config", ".cache", ".local/bin", ".local/share")}
        assert not (host.home / ".ssh").is_relative_to(path), path


def test_a_pip_user_script_is_shown_alone_and_the_operator_told(host: Host) -> None:
    tool = program(host.home / ".local/bin/tool", "#!/usr/bin/python3\nimport tool\n")
    plain(host.home / ".local/lib/python3.11/site-packages/tool.py")
    found = host.resolve("tool", path=[host.home / ".local/bin"])
    assert found.prefixes == (tool,)
    assert found.path == f"{host.home}/.local/bin:{DEFAULT}"
    assert "pip install --user" in found.notes[0]


def test_a_python_in_the_homes_own_bin_is_shown_alone(host: Host) -> None:
    python_prefix(host.home)  # the home itself looks like an installation
    program(host.work / "run", f"#!{host.home}/bin/python3.12\n")
    found = host.resolve("./run")
    assert found.prefixes == (host.home / "bin" / "python3.12",)
    assert str(host.home) in found.notes[0]


def test_a_planted_pyvenv_cfg_shows_neither_the_home_nor_what_holds_it(host: Host) -> None:
    for place in (host.home, host.home.parent, host.home / ".local", host.home / ".config"):
        plain(place / "pyvenv.cfg", "home = /\n")
        tool = program(place / "bin" / "tool")
        found = host.resolve(tool)
        assert found.prefixes == (tool,)
        assert_nothing_private(host, found)


@pytest.mark.parametrize("claim", ["/", "~", "{home}", "{home}/.ssh", "{home}/x/..", "", "relative/bin", "/proc/self"])
def test_a_hostile_home_line_gains_nothing(host: Host, claim: str) -> None:
    for place in (host.home, host.home / ".ssh", host.home / "x"):
        program(place / "python3")
    program(host.work / ".venv/bin/tool")
    plain(host.work / ".venv/pyvenv.cfg", f"home = {claim.format(home=host.home)}\n")
    found = host.resolve(".venv/bin/tool")
    assert_nothing_private(host, found)
    assert all(path.is_file() and ".ssh" not in path.parts for path in found.prefixes)


def test_a_link_below_opt_like_places_to_the_home_does_not_show_the_home(host: Host) -> None:
    program(host.home / "bin" / "tool")
    plain(host.home / "pyvenv.cfg", "home = /usr/bin\n")
    alias = link(host.home.parent / "alias", host.home)
    found = host.resolve(alias / "bin" / "tool")
    assert_nothing_private(host, found)
    assert all(path.is_file() for path in found.prefixes)


@pytest.mark.parametrize("sign", [".git/HEAD", ".env", ".ssh/id_ed25519", ".netrc"])
def test_an_environment_made_inside_a_project_does_not_show_the_project(host: Host, sign: str) -> None:
    other = host.home / "other-project"
    venv(other, Path("/usr/bin"))
    plain(other / sign, "secret")
    tool = program(other / "bin" / "tool")
    found = host.resolve(tool)
    assert found.prefixes == (tool,)
    assert "--mount" in found.notes[0]


def test_a_program_in_a_credential_place_is_refused(host: Host) -> None:
    tool = program(host.home / ".ssh" / "tool")
    link(host.home / "bin" / "tool", tool)
    for name in (tool, host.home / "bin" / "tool"):
        with pytest.raises(EACCES) as caught:
            host.resolve(name)
        assert caught.value.code == "command.private"


def test_the_callers_private_places_are_not_shown(host: Host) -> None:
    state = host.home / "py" / "state"
    base = python_prefix(host.home / "py")
    found = guest.resolve(
        [str(base / "bin/python3.12")], cwd=host.work, path=DEFAULT, home=host.home, visible=[], private=[state]
    )
    assert found.prefixes == (base / "bin/python3.12",)


def test_a_script_outside_is_not_shown_but_mentioned(host: Host) -> None:
    outside = plain(host.home / "a b" / "script.py")
    plain(host.work / "inside.py")
    hint = host.resolve("/bin/sh", outside)
    assert hint.prefixes == ()
    assert hint.notes == (f"script {outside} is outside the workspace; add --mount '{outside.parent}'",)
    for quiet in (["inside.py"], ["-c", str(outside)], ["absent.py"], []):
        assert host.resolve("/bin/sh", *quiet).notes == ()


# --- PATH


def test_the_guests_path_keeps_the_hosts_order_and_only_what_exists_inside(host: Host) -> None:
    base = python_prefix(host.home / "py")
    (host.work / "bin").mkdir()
    hidden = host.home / "bin"
    hidden.mkdir()
    found = host.resolve("python", path=[hidden, "", "relative", host.work / "bin", base / "bin", "/usr/bin"])
    assert found.path.split(":") == [str(host.work / "bin"), str(base / "bin"), "/usr/bin", "/usr/local/bin", "/bin"]


def test_a_multi_call_program_keeps_the_name_it_was_called_by(host: Host) -> None:
    name = link(host.home / "bin" / "list", shutil.which("ls") or "/bin/ls")
    found = host.resolve("list", path=[name.parent])
    assert (found.argv, found.prefixes) == ((str(name),), (name,))


# --- the environment


def environment(
    *,
    host_env: dict[str, str] | None = None,
    extra: dict[str, str] | None = None,
    proxy: bool = True,
    program: Program | None = None,
) -> dict[str, str]:
    return guest.environment(
        host_env=host_env or {}, extra=extra or {}, path=DEFAULT, proxy=proxy, workspace="/w", program=program
    )


@given(st.dictionaries(st.text(string.ascii_uppercase + "_", min_size=1), st.text(min_size=1)))
def test_no_variable_of_the_host_passes_but_locale_and_terminal(host_env: dict[str, str]) -> None:
    baseline = environment()
    for name, value in environment(host_env=host_env).items():
        if baseline.get(name) != value:
            assert name in ("LANG", "LANGUAGE", "TZ", "TERM") or name.startswith("LC_")
            assert value.isprintable()


def test_locale_and_terminal_pass_unless_they_carry_control_characters() -> None:
    good = {"LANG": "de_DE.UTF-8@euro", "LC_TIME": "C", "TZ": ":Europe/Berlin", "TERM": "xterm-256color"}
    assert good.items() <= environment(host_env=good).items()
    bad = environment(host_env={"LANG": "C\n", "TERM": "\x1b]0;x\x07", "LC_ALL": "x" * 500, "lc_all": "C"})
    assert (bad["LANG"], bad["TERM"]) == ("C.UTF-8", "dumb")
    assert not {"LC_ALL", "lc_all"} & set(bad)


def test_a_guest_is_told_who_and_where_it_is() -> None:
    told = environment(host_env={"HOME": "/root", "USER": "root", "AWS_SECRET_ACCESS_KEY": "s"})
    assert (told["HOME"], told["USER"], told["LOGNAME"]) == ("/home/agent", "agent", "agent")
    assert (told["PATH"], told["PWD"], told["TMPDIR"], told["AGENT_OS"]) == (DEFAULT, "/w", "/tmp", "1")
    assert os.access(told["SHELL"], os.X_OK)
    assert "AWS_SECRET_ACCESS_KEY" not in told


def test_the_proxy_is_named_in_every_spelling_or_not_at_all() -> None:
    told = environment()
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        assert told[name] == told[name.lower()] == "http://127.0.0.1:3128"
    assert told["NO_PROXY"] == told["no_proxy"] == "127.0.0.1,localhost"
    assert told["NODE_USE_ENV_PROXY"] == "1"
    assert "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=3128" in told["JAVA_TOOL_OPTIONS"]
    assert not [name for name in environment(proxy=False) if "PROXY" in name.upper() or name == "JAVA_TOOL_OPTIONS"]


def test_what_the_operator_sets_wins() -> None:
    assert (
        environment(extra={"HOME": "/w", "LD_PRELOAD": "x.so"}).items() >= {"HOME": "/w", "LD_PRELOAD": "x.so"}.items()
    )


def test_virtual_env_passes_only_for_a_program_of_that_venv(host: Host) -> None:
    mine = venv(host.work / ".venv", Path("/usr/bin"))
    program(mine / "bin" / "tool")
    host_env = {"VIRTUAL_ENV": str(mine)}
    assert environment(host_env=host_env, program=host.resolve(".venv/bin/tool"))["VIRTUAL_ENV"] == str(mine)
    assert "VIRTUAL_ENV" not in environment(host_env=host_env, program=host.resolve("sh"))


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_commits_in_a_repository_that_belongs_to_somebody_else(host: Host) -> None:
    def git(*words: str, told: dict[str, str]) -> subprocess.CompletedProcess[str]:
        # git's own switch for "the owner of this repository is somebody else"
        env = told | {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1", "HOME": str(host.home)}
        return subprocess.run(["git", *words], cwd=host.work, env=env, capture_output=True, text=True, check=False)

    told = environment()
    subprocess.run(["git", "init", "-q"], cwd=host.work, env=told | {"HOME": str(host.home)}, check=True)
    bare = {"PATH": DEFAULT}
    if git("status", told=bare).returncode == 0:
        pytest.skip("this git does not check who owns a repository")
    assert git("commit", "-q", "--allow-empty", "-m", "x", told=told).returncode == 0
    log = git("log", "-1", "--format=%an <%ae> %cn <%ce>", told=told)
    assert log.stdout == "agent <agent@agent-os.invalid> agent <agent@agent-os.invalid>\n"


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_program_that_asks_git_for_its_identity_finds_the_same_one(host: Host) -> None:
    env = environment() | {"HOME": str(host.home)}
    asked = [
        subprocess.run(["git", "config", "--get", name], cwd=host.work, env=env, capture_output=True, text=True).stdout
        for name in ("user.name", "user.email")
    ]
    assert asked == [env["GIT_AUTHOR_NAME"] + "\n", env["GIT_AUTHOR_EMAIL"] + "\n"]


# --- the flags

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True)
values = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(st.dictionaries(names, values))
def test_env_flags_say_what_they_set(wanted: dict[str, str]) -> None:
    assert parse_env([f"{name}={value}" for name, value in wanted.items()], {}) == wanted
    assert parse_env(list(wanted), wanted) == wanted


@given(st.text())
def test_any_env_flag_is_understood_or_refused_as_invalid(text: str) -> None:
    try:
        parsed = parse_env([text], {})
    except EINVAL:
        return
    assert [f"{name}={value}" for name, value in parsed.items()] == [text]


def test_a_variable_that_is_not_set_here_cannot_be_taken_over() -> None:
    with pytest.raises(EINVAL, match="NO_SUCH is not set") as caught:
        parse_env(["NO_SUCH"], {})
    assert (caught.value.code, caught.value.hint) == ("env.unset", "--env NO_SUCH=VALUE")


@pytest.mark.parametrize("bad", ["", "=x", "1A=x", "A B=x", "A-B", "Ä=x", "A=\0", "A\n=x"])
def test_a_malformed_env_flag_is_refused(bad: str) -> None:
    with pytest.raises(EINVAL) as caught:
        parse_env([bad], {})
    assert caught.value.code == "env.malformed"


def test_mounts_are_read_only_at_their_own_path_unless_said_otherwise(host: Host) -> None:
    data = host.work / "da ta"
    data.mkdir()
    assert parse_mount("da ta", cwd=host.work) == Mount(data, str(data), rw=False)
    assert parse_mount(f"rw:{data}/", cwd=Path("/")) == Mount(data, str(data), rw=True)
    assert parse_mount("rw:./da ta://data//x/./", cwd=host.work) == Mount(data, "/data/x", rw=True)


def test_a_mount_source_is_the_real_place_at_the_name_that_was_given(host: Host) -> None:
    data = host.home / "data"
    data.mkdir()
    alias = link(host.work / "alias", data)
    assert parse_mount("alias", cwd=host.work) == Mount(data, str(alias), rw=False)


@pytest.mark.parametrize(
    "text", ["", "rw:", ":", ".:", ":/x", ".:/a:rw", ".:relative", ".:/a/../etc", ".:/a\nb", "a\0b"]
)
def test_a_malformed_mount_is_refused(host: Host, text: str) -> None:
    with pytest.raises(EINVAL) as caught:
        parse_mount(text, cwd=host.work)
    assert caught.value.code == "mount.malformed"


@pytest.mark.parametrize(
    "at",
    [
        "/",
        "//",
        "/.",
        "/proc",
        "/proc/x",
        "/dev/null",
        "/usr/x",
        "/etc/x",
        "/bin",
        "/lib64/x",
        "/sys/",
        "/tmp",
        "/work",
    ],
)
def test_a_mount_over_the_sandboxs_own_places_is_refused(host: Host, at: str) -> None:
    with pytest.raises(EINVAL) as caught:
        parse_mount(f".:{at}", cwd=host.work)
    assert caught.value.code == "mount.refused"


def test_places_below_tmp_and_names_that_only_begin_alike_are_fine(host: Host) -> None:
    for at in ("/tmp/x", "/work/x", "/home/agent/.cache", "/user", "/binaries", "/etcetera"):
        assert parse_mount(f".:{at}", cwd=host.work).at == at


def test_a_missing_mount_source_is_named(host: Host) -> None:
    link(host.work / "loop", "loop")
    for text in ("absent", "rw:absent:/x", "loop"):
        with pytest.raises(ENOENT) as caught:
            parse_mount(text, cwd=host.work)
        assert caught.value.code == "mount.unknown"


@given(st.text(st.sampled_from("abrw:/.~ \n\0é"), max_size=20))
def test_any_mount_flag_is_understood_or_refused(text: str) -> None:
    try:
        mount = parse_mount(text, cwd=Path("/usr"))
    except (EINVAL, ENOENT):
        return
    assert mount.at.startswith("/")
    assert os.path.normpath(mount.at) == mount.at != "/"
    assert ".." not in mount.at.split("/")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("10s", 10), ("5m", 300), ("1h", 3600), ("1.5m", 90), ("250ms", 0.25), ("2d", 172800)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "5x", "m", "1e3", "nan", "inf", "1h30m", "٣s", "9" * 400])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(EINVAL) as caught:
        parse_duration(text)
    assert caught.value.code == "duration.malformed"


@given(st.text())
def test_any_duration_is_positive_or_refused(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except EINVAL:
        return
    assert 0 < seconds < float("inf")
