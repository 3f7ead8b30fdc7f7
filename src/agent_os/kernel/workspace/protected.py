"""The three lists that keep a workspace from becoming a way in: protected files, refused sources, masked credentials.

In: paths as text. Out: yes or no, or names. Pure: nothing here looks at the disk; `workspace` and `changes` do.
What is protected is what tools execute or read as configuration, so that a change an agent made cannot run with the
operator's rights before the operator has seen it.
"""

import unicodedata
from functools import lru_cache

# Everything below, by the name of any component.
_DIRECTORIES = {".git", ".claude", ".vscode", ".agents", ".githooks", ".husky", "sitecustomize", "usercustomize"}
# By the last name.
_FILES = {
    ".gitattributes", ".gitmodules", ".envrc", "conftest.py", "sitecustomize.py", "usercustomize.py",
    "package.json", ".npmrc", "makefile", "gnumakefile", ".mcp.json", "agents.md", "claude.md", ".agent.toml",
    # No ordinary file is called HEAD, and without one no directory can pass as a bare repository with its own config.
    "head",
}  # fmt: skip
_SUFFIXES = (".pth", ".agent.toml", ".agent.json")
_SHELL_START = {
    ".profile", ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".inputrc",
    ".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".mkshrc", ".shrc",
    ".cshrc", ".tcshrc", ".login", ".logout", "config.fish", ".pam_environment", ".xinitrc", ".xprofile", ".xsession",
}  # fmt: skip
_GIT_HOOKS = {
    "applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit", "prepare-commit-msg",
    "commit-msg", "post-commit", "pre-rebase", "post-checkout", "post-merge", "pre-push", "pre-receive", "post-receive",
    "post-update", "reference-transaction", "push-to-checkout", "pre-auto-gc", "post-rewrite", "sendemail-validate",
    "fsmonitor-watchman", "post-index-change", "proc-receive",
}  # fmt: skip

# Below a home directory. Directories and files alike.
CREDENTIALS = (
    ".ssh", ".gnupg", ".netrc", ".git-credentials", ".config/git/credentials", ".password-store",
    ".aws", ".azure", ".config/gcloud", ".oci", ".config/doctl", ".kube", ".docker", ".config/containers/auth.json",
    ".config/gh", ".config/glab-cli", ".config/hub", ".terraform.d/credentials.tfrc.json", ".vault-token",
    ".npmrc", ".yarnrc.yml", ".pypirc", ".cargo/credentials", ".cargo/credentials.toml",
    ".gem/credentials", ".m2/settings.xml",
    ".pgpass", ".my.cnf", ".claude/.credentials.json", ".claude.json", ".codex/auth.json",
    ".local/share/keyrings", ".local/share/kwalletd", ".config/op", ".config/1Password",
    ".config/Bitwarden", ".config/keepassxc",
    ".mozilla", ".thunderbird", ".config/google-chrome", ".config/google-chrome-beta", ".config/chromium",
    ".config/BraveSoftware", ".config/microsoft-edge", ".config/opera", ".config/vivaldi", ".librewolf",
    "snap/firefox", "snap/chromium", ".var/app/org.mozilla.firefox", ".var/app/com.google.Chrome",
    ".var/app/org.chromium.Chromium", ".var/app/com.brave.Browser",
)  # fmt: skip

# What may be protected by the name of what it lies in: itself, everything, or one of the pairs of names below.
_BELOW = ("", "x", "workflows/x", "fish/x", "update")

KERNEL_TREES = ("/proc", "/sys", "/dev")


def is_protected(path: str) -> bool:
    """Whether a path relative to the workspace is one that tools execute or read as configuration, at any depth."""
    parts = [_fold(part) for part in path.split("/") if part not in ("", ".")]
    if not parts:
        return False
    above = ["", *parts[:-1]]
    return _protected_file(parts[-1], above[-1]) or any(map(_protected_directory, parts, above))


def ways(path: str) -> frozenset[int]:
    """How a name protects what bears it and what lies below. Two names with the same ways are alike to every tool."""
    return frozenset(way for way, rest in enumerate(_BELOW) if is_protected(f"{path}/{rest}"))


def _protected_directory(part: str, above: str) -> bool:
    return (
        part in _DIRECTORIES
        or part.endswith(".git")  # a bare repository
        or part.startswith("git~")  # what a DOS-compatible file system calls .git
        or (part == "workflows" and above == ".github")
        or (part == "fish" and above == ".config")
    )


def _protected_file(name: str, above: str) -> bool:
    return (
        name in _FILES
        or name in _SHELL_START
        or name in _GIT_HOOKS
        or (name == "update" and above == "hooks")  # git's, but too common a word elsewhere
        or name.endswith(_SUFFIXES)
    )


@lru_cache(4096)  # few names make many paths
def _fold(part: str) -> str:
    """One spelling for all that a folding file system could take for the same name."""
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", part).casefold())
    text = "".join(char for char in text if unicodedata.category(char) != "Cf")  # zero-width marks, ignored by HFS+
    text = text.partition(":")[0] or text  # an NTFS stream of the file is the file
    return text.rstrip(". ") or text


def outward(path: str, target: str) -> bool:
    """Whether a link at `path` may lead out of the workspace. Only leading `..` are counted on:

    behind a name, `..` leads to wherever that name, itself perhaps a link, happens to point.
    """
    if target.startswith("/") or not target:
        return True
    steps = [step for step in target.split("/") if step not in ("", ".")]
    ups = 0
    while ups < len(steps) and steps[ups] == "..":
        ups += 1
    return ".." in steps[ups:] or ups > path.count("/")


def refusal(source: str, *, state: str, homes: list[str]) -> str | None:
    """Why a real path may not be a workspace or mount source, or None. All arguments are real, absolute paths."""
    if source == "/":
        return "/ is the whole machine"
    for tree in KERNEL_TREES:
        if within(source, tree):
            return f"{tree} belongs to the Linux kernel"
    if within(source, state):
        return f"{source} is inside the state directory of Agent OS"
    if within(state, source):
        return f"{source} holds the state directory of Agent OS ({state})"
    for home in homes:
        if source == home:
            return f"{source} is a whole home directory"
        if within(home, source):
            return f"{source} holds the home directory {home}"
    return None


def within(path: str, above: str) -> bool:
    """Whether `path` is `above` or lies below it, by whole names."""
    return above == "/" or path == above or path.startswith(above + "/")


def credential_places(homes: list[str], state: str) -> list[str]:
    """Every path that is always hidden, whether it exists or not."""
    return [state, *(f"{home.rstrip('/')}/{name}" for home in homes for name in CREDENTIALS)]
