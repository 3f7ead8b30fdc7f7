"""`--limit NAME=VALUE`: what it means, and what is refused with a right form."""

import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.abi.errors import EINVAL
from agent_os.kernel.guest import NAMES, default_limits, parse_limits, unenforced
from agent_os.sandbox import hierarchies
from agent_os.sandbox.spec import GUEST_LIMITS, Limits


def test_every_limit_but_the_wall_clock_and_the_share_of_a_manifest_can_be_set() -> None:
    assert set(NAMES) == set(Limits()._asdict()) - {"wall_s", "weight"}


def test_what_is_set_is_changed_and_nothing_else() -> None:
    asked = parse_limits(["memory_mb=100", "pids=7", "pids=9", "cpu_pct=20"], wall_s=3.0)
    changed = {"memory_mb": 100, "pids": 9, "cpu_pct": 20, "wall_s": 3.0}
    assert asked._asdict() == GUEST_LIMITS._asdict() | changed


def test_a_guest_has_half_of_the_memory_where_somebody_can_hold_it_to_that() -> None:
    found = parse_limits([])
    total = int(Path("/proc/meminfo").read_text().split()[1]) // 1024
    half = total // 2 if "memory" in hierarchies.detect().controllers else None
    assert (found.memory_mb, found.pids, found.as_mb, found.wall_s) == (half, 512, None, None)


@pytest.mark.parametrize(
    ("item", "code", "reason", "hint"),
    [
        ("memory=5", "limit.unknown", "Did you mean memory_mb", "one of memory_mb"),
        ("cpu=5", "limit.unknown", "cpu_pct", "one of"),
        ("PIDS=5", "limit.unknown", "'PIDS' is no limit", "one of"),
        ("=5", "limit.unknown", "is no limit", "one of"),
        ("", "limit.unknown", "is no limit", "one of"),
        ("wall_s=5", "limit.unknown", "flag of its own", "--timeout 10m"),
        ("memory_mb", "limit.malformed", "whole number", "--limit memory_mb=512"),
        ("memory_mb=", "limit.malformed", "whole number", "--limit memory_mb=512"),
        ("memory_mb=1G", "limit.malformed", "whole number", "--limit memory_mb=512"),
        ("memory_mb=-1", "limit.malformed", "whole number", "--limit memory_mb=512"),
        ("memory_mb=1.5", "limit.malformed", "whole number", "--limit memory_mb=512"),
        ("memory_mb=٥١٢", "limit.malformed", "whole number", "--limit memory_mb=512"),
        ("memory_mb=" + "9" * 5000, "limit.malformed", "whole number", "--limit memory_mb=512"),
        ("memory_mb=15", "limit.range", "from 16 to", "--limit memory_mb=512"),
        ("pids=0", "limit.range", "from 4 to", "--limit pids="),
        ("cpu_pct=0", "limit.range", "from 1 to", "--limit cpu_pct="),
        ("cpu_pct=999999", "limit.range", "from 1 to", "--limit cpu_pct="),
    ],
)
def test_a_wrong_limit_is_refused_with_a_right_form(item: str, code: str, reason: str, hint: str) -> None:
    with pytest.raises(EINVAL) as caught:
        parse_limits(["pids=100", item])
    assert caught.value.code == code
    assert reason in str(caught.value)
    assert hint in (caught.value.hint or "")


def test_more_than_the_kernel_was_started_with_is_refused_before_anything_starts() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or hard >= 1 << 20:
        pytest.skip("rlimit: no bound on open files here")
    assert parse_limits([f"nofile={hard}"]).nofile == hard
    with pytest.raises(EINVAL, match=f"to {hard} here"):
        parse_limits([f"nofile={hard + 1}"])


@given(st.text(max_size=40))
def test_any_text_is_a_limit_or_a_refusal(text: str) -> None:
    try:
        parsed = parse_limits([text])
    except EINVAL:
        return
    assert text.partition("=")[0] in NAMES
    assert parsed != default_limits() or int(text.partition("=")[2]) in parsed._asdict().values()


def test_a_limit_that_nobody_keeps_is_told() -> None:
    (note,) = unenforced({"pids": "RLIMIT_NPROC, per agent", "memory_mb": "nothing: no cgroup controller"})
    assert "memory_mb is not enforced here" in note
    assert "agentctl doctor" in note
