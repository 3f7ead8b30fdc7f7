"""kernel/protected: the lists, as tables and as properties."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.kernel.workspace.protected import CREDENTIALS, credential_places, is_protected, outward, refusal, within

# Every file sandbox.md §6 names.
NAMED = [
    ".git/config", ".git/hooks/pre-commit", ".git", ".gitattributes", ".gitmodules", ".envrc", "conftest.py",
    "sitecustomize.py", "x.pth", "package.json", ".npmrc", "Makefile", ".mcp.json", "AGENTS.md", "CLAUDE.md",
    ".claude/settings.json", ".vscode/tasks.json", ".github/workflows/ci.yml",
    ".agent.toml", "made.agent.json", ".agents/fixer.agent.toml",
    ".bashrc", ".bash_profile", ".profile", ".zshrc", ".zshenv", ".zprofile", ".cshrc", ".config/fish/config.fish",
    "hooks/update", ".husky/pre-commit", ".githooks/x", "scripts/pre-push",
]  # fmt: skip
ORDINARY = [
    "main.py", "src/git.py", "git/config", "docs/Makefile.md", "src/hooks/useThing.ts",
    ".github/README.md", "workflows/a.yml",
    "package.json.md", "my.package.json", ".gitignore", "head/index.ts", "update", "README.md",
    "tests/test_conftest.py", "a.path",
]  # fmt: skip

names = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=12)
plain_names = st.text(string.ascii_lowercase, min_size=1, max_size=8)


@pytest.mark.parametrize("path", NAMED)
@pytest.mark.parametrize("above", ["", "a/", "deep/er/"])
def test_every_named_file_is_protected_at_any_depth(path: str, above: str) -> None:
    assert is_protected(above + path)


@pytest.mark.parametrize("path", ORDINARY)
def test_ordinary_files_are_not_protected(path: str) -> None:
    assert not is_protected(path)


@pytest.mark.parametrize(
    "path", [".GIT/config", ".Git", ".g\u200cit/config", ".git./config", ".git /config", "GIT~1/config",
             ".git::$INDEX_ALLOCATION/x",
             "CONFTEST.PY", "MAKEFILE", "ſitecustomize.py", "．git/x", ".envrc.", "repo.git/config", "evil/HEAD"]
)  # fmt: skip
def test_spellings_that_a_folding_file_system_takes_for_the_same_are_protected(path: str) -> None:
    assert is_protected(path)


@given(st.sampled_from(NAMED), st.lists(names, max_size=3), st.booleans())
def test_no_case_and_no_prefix_takes_the_protection_away(path: str, above: list[str], upper: bool) -> None:
    assert is_protected("/".join([*above, path.upper() if upper else path]))


@given(st.lists(names, max_size=4))
def test_everything_below_a_git_directory_is_protected(below: list[str]) -> None:
    assert is_protected("/".join(["x", ".git", *below]))


@pytest.mark.parametrize(
    ("path", "target", "leads_out"),
    [
        ("l", "a", False), ("l", "./a/b", False), ("d/l", "../a", False), ("d/e/l", "../../a", False),
        ("l", ".", False),
        ("l", "/etc/passwd", True), ("l", "..", True), ("l", "../a", True), ("d/l", "../../a", True), ("l", "", True),
        ("d/l", "x/../../../etc", True), ("l", "a/..", True), ("d/l", ".././../a", True), ("l", "//x", True),
    ],
)  # fmt: skip
def test_outward_links(path: str, target: str, leads_out: bool) -> None:
    assert outward(path, target) is leads_out


@given(st.lists(plain_names, max_size=4), st.lists(st.sampled_from(["..", ".", "a", "b", ""]), min_size=1, max_size=8))
def test_a_link_that_resolves_outside_is_always_outward(above: list[str], target: list[str]) -> None:
    steps = list(above)
    left = False
    for step in target:
        if step == ".." and not steps:
            left = True
        elif step == "..":
            steps.pop()
        elif step not in ("", "."):
            steps.append(step)
    if left:
        assert outward("/".join([*above, "link"]), "/".join(target))


@pytest.mark.parametrize(
    "source", ["/", "/home/me", "/home", "/home/me/.local", "/home/me/.local/state/agent-os",
               "/home/me/.local/state/agent-os/work/x", "/proc", "/proc/1", "/sys/fs", "/dev/shm"]
)  # fmt: skip
def test_refused_sources(source: str) -> None:
    assert refusal(source, state="/home/me/.local/state/agent-os", homes=["/home/me"])


@pytest.mark.parametrize("source", ["/home/me/project", "/home/mean", "/processes", "/srv", "/home/me/.local/share/x"])
def test_ordinary_sources_are_accepted(source: str) -> None:
    assert refusal(source, state="/home/me/.local/state/agent-os", homes=["/home/me"]) is None


@given(st.lists(plain_names, min_size=1, max_size=4), st.lists(plain_names, max_size=4))
def test_within_counts_whole_names(above: list[str], below: list[str]) -> None:
    base = "/" + "/".join(above)
    assert within("/".join([base, *below]), base)
    assert not within(base + "x", base)
    assert within(base, "/")


def test_every_home_has_every_credential_place() -> None:
    places = credential_places(["/home/a", "/root"], "/state")
    assert places[0] == "/state"
    assert len(places) == 1 + 2 * len(CREDENTIALS)
    for named in [".ssh", ".aws", ".config/gh", ".netrc", ".docker", ".kube", ".mozilla", ".local/share/keyrings"]:
        assert f"/home/a/{named}" in places
