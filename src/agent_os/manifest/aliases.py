"""Which other spellings of a key are read, and which words are kept for later.

Every path on the left of `ALIASES` is read as the one on the right; a path that is only the beginning of one is a table
that exists for its aliases alone. Camel case is not here: every key may be written so.
"""

Names = tuple[str, ...]

_LISTS = ("tools", "tools_deny", "topics_publish", "topics_subscribe", "filesystem_access")
_COUNTS = ("tool_calls", "messages", "tokens")

ALIASES: dict[Names, Names] = {
    **{("agent", key): (key,) for key in ("name", "namespace", "version", "description", "role", "base_role")},
    **{("capabilities", key): (key,) for key in _LISTS},
    ("health", "check_interval"): ("health", "check_interval_secs"),
    ("health", "timeout"): ("health", "timeout_secs"),
    ("model", "name"): ("program", "model"),
    ("goal",): ("program", "goal"),
    ("cron",): ("lifecycle", "schedule"),
    ("lifecycle", "cron"): ("lifecycle", "schedule"),
    **{("resources", "budget", f"max_{key}"): ("budget", key) for key in _COUNTS},
    ("resources", "budget", "max_cost_usd"): ("budget", "usd"),
    **{("resources", "budget", key): ("budget", key) for key in (*_COUNTS, "usd", "per", "on_exhausted")},
    ("stop_grace_s",): ("lifecycle", "grace_secs"),
    ("lifecycle", "stop_grace_s"): ("lifecycle", "grace_secs"),
}
TABLES = {path[:-1] for path in ALIASES} | {("resources", "budget")}
CRON = {("cron",), ("lifecycle", "cron")}  # these say when it starts as well

ELSEWHERE_CALLED: dict[str, Names] = {  # what other tools' files say; not read, but answered
    **dict.fromkeys(("command", "cmd", "args", "exec", "run", "entrypoint"), ("program", "argv")),
    **dict.fromkeys(("environment", "env_vars"), ("program", "env")),
    **dict.fromkeys(("cwd", "workdir", "working_directory"), ("program", "working_dir")),
    **dict.fromkeys(("depends_on", "needs"), ("dependencies", "requires")),
    **dict.fromkeys(("restart", "on_failure"), ("health", "restart_policy")),
    "memory": ("resources", "max_memory_mb"),
    "volumes": ("mounts",),
}
RESERVED = frozenset(
    {
        "idle_secs",
        "replicas",
        "pool",
        "auto_shutdown",
        "significant",
        "before",
        "part_of",
        "conflicts",
        "image",
        "signature",
        "signatures",
    }
)
