"""Weaker hosts, simulated: each Landlock version still holds what it covers, and a missing layer lowers the level."""

import asyncio
from collections.abc import Iterator

import pytest

from agent_os.sandbox import landlock, spawner
from agent_os.sandbox.spawner import SandboxError
from hostile import harness
from hostile.battery import ATTEMPTS
from hostile.stage import Stage, ordinary_uid

pytestmark = pytest.mark.hostile
Scene = tuple[Stage, spawner.Lease]
HARMLESS = ["1"]


@pytest.fixture
def scene() -> Iterator[Scene]:
    stage, lease = harness.new_stage()
    yield stage, lease
    stage.close()
    lease.release()


def _run(scene: Scene, ids: list[str], *, min_level: str, kind: str = "guest", **simulate: object) -> harness.Run:
    async def run() -> harness.Run:
        stage, lease = scene
        launcher = await spawner.Launcher.start(**simulate)
        try:
            return await harness.run_inside(launcher, lease, stage, kind, ids, min_level=min_level)
        finally:
            await launcher.close()

    return asyncio.run(run())


def _not_held(results: harness.Results) -> list[harness.Result]:
    return [result for result in results.values() if result.outcome != "refused"]


@pytest.mark.parametrize("abi", [1, 2, 3, 4, 5, 6])
def test_every_version_of_landlock_spawns_and_holds(scene: Scene, abi: int) -> None:
    if landlock.abi() < abi:
        pytest.skip(f"landlock: this kernel offers version {landlock.abi()} only")
    run = _run(scene, harness.attributed("landlock"), min_level="S2", landlock_abi=abi)
    assert run.landlock_abi == abi
    assert run.level in ("S2", "S3")
    assert _not_held(run.results) == []


@pytest.mark.parametrize("abi", [1, 2, 3, 4, 5, 6])
def test_every_version_of_landlock_alone_stops_what_it_covers(abi: int) -> None:
    if landlock.abi() < abi:
        pytest.skip(f"landlock: this kernel offers version {landlock.abi()} only")
    stage = Stage(ordinary_uid(), owned=True)
    covered = harness.attributed("landlock", abi)
    try:
        assert _not_held(harness.run_outside(stage, covered, layer="landlock", abi=abi)) == []
    finally:
        stage.close()


def test_a_version_does_not_stop_what_it_does_not_know() -> None:
    """The control of the simulation: at version 3 TCP, abstract sockets and signals pass."""
    stage = Stage(ordinary_uid(), owned=True)
    beyond = [id for id in harness.attributed("landlock") if ATTEMPTS[id].layers["landlock"] > 3]
    try:
        results = harness.run_outside(stage, beyond, layer="landlock", abi=3)
    finally:
        stage.close()
    assert len(results) >= 4
    assert {result.outcome for result in results.values()} == {"succeeded"}


@pytest.mark.parametrize("simulate", [{"without": ("landlock",)}, {"landlock_abi": 0}])
def test_without_landlock_the_level_is_s1_and_s2_is_refused(scene: Scene, simulate: dict[str, object]) -> None:
    with pytest.raises(SandboxError) as refused:
        _run(scene, HARMLESS, min_level="S2", **simulate)
    assert refused.value.word == "level"
    assert "landlock" in refused.value.why
    assert _run(scene, HARMLESS, min_level="S1", **simulate).level == "S1"


@pytest.mark.parametrize("layer", ["seccomp", "capabilities", "limits"])
def test_without_another_layer_the_level_is_s0_and_s1_is_refused(scene: Scene, layer: str) -> None:
    with pytest.raises(SandboxError) as refused:
        _run(scene, HARMLESS, min_level="S1", without=(layer,))
    assert refused.value.word == "level"
    assert layer in refused.value.why
    assert _run(scene, HARMLESS, min_level="S0", without=(layer,)).level == "S0"


@pytest.mark.parametrize("kind", harness.KINDS)
def test_no_attempt_succeeds_at_s1_either(scene: Scene, kind: str) -> None:
    """One lock on files instead of two; the one that is left holds."""
    run = _run(scene, list(ATTEMPTS), min_level="S1", kind=kind, without=("landlock",))
    assert run.level == "S1"
    bad = [result for result in run.results.values() if result.outcome in ("succeeded", "broken")]
    assert bad == []


def test_a_level_that_nobody_reaches_is_refused_with_a_reason(scene: Scene) -> None:
    with pytest.raises(SandboxError) as refused:
        _run(scene, HARMLESS, min_level="S4")
    assert refused.value.word == "level"
    assert "S4" in refused.value.why


@pytest.mark.parametrize("kind", harness.KINDS)
@pytest.mark.parametrize("layer", ["seccomp", "limits"])
def test_what_one_layer_stops_gets_through_where_it_is_missing(scene: Scene, layer: str, kind: str) -> None:
    """The control inside: these attempts do not fail for want of a file or by another mistake of theirs."""
    only = [one.id for one in ATTEMPTS.values() if list(one.layers) == [layer] and one.control in ("plain", "box")]
    run = _run(scene, only, min_level="S0", kind=kind, without=(layer,))
    assert run.level == "S0"
    held = [result for result in run.results.values() if result.outcome != "succeeded"]
    assert [result for result in held if not harness.impossible_here(result.id, result)] == []
    assert len(run.results) - len(held) >= 3
