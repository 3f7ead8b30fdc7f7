"""The escape battery: everything a hostile program tries fails in every kind of sandbox, and works without one."""

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_os.sandbox import spawner
from hostile import harness, hoststate, report
from hostile.battery import ATTEMPTS
from hostile.harness import KINDS, LAYERS, Results
from hostile.stage import Stage, ordinary_uid

pytestmark = pytest.mark.hostile
ENOUGH = 105


@dataclass
class Battery:
    runs: dict[str, harness.Run]
    peer_untouched: bool
    survivors: dict[int, str]
    differences: list[str]


@pytest.fixture(scope="module")
def controls() -> Iterator[Results]:
    stage = Stage(ordinary_uid(), owned=True)
    report.CONTROL.update(harness.run_controls(stage))
    yield report.CONTROL
    stage.close()


@pytest.fixture(scope="module")
def battery(controls: Results) -> Iterator[Battery]:
    """Every attempt in every kind, with secrets in our environment and descriptors, between two looks at the host."""
    stage, lease = harness.new_stage()
    os.environ["AGENT_OS_BATTERY"] = stage.secret
    careless = os.open(stage.base / "hidden/file", os.O_RDONLY)
    os.set_inheritable(careless, True)
    known = harness.survivors()
    owners = {stage.uid, ordinary_uid()}
    before = hoststate.snapshot(stage.canaries, owners, harness.MARK)
    try:
        runs = asyncio.run(_run_all(stage, lease))
    finally:
        os.close(careless)
        del os.environ["AGENT_OS_BATTERY"]
    after = hoststate.snapshot(stage.canaries, owners, harness.MARK)
    found = Battery(runs, stage.peer_is_untouched(), harness.survivors(known), hoststate.differences(before, after))
    for kind, run in runs.items():
        report.KIND[kind], report.LEVEL[kind] = run.results, run.level
    report.DIFFERENCES[:] = found.differences
    yield found
    stage.close()
    lease.release()


async def _run_all(stage: Stage, lease: spawner.Lease) -> dict[str, harness.Run]:
    launcher = await spawner.Launcher.start()
    try:
        runs = {kind: await harness.run_inside(launcher, lease, stage, kind, ATTEMPTS) for kind in KINDS}
        again = await harness.run_inside(launcher, lease, stage, "native-warm", ["84"])
    finally:
        await launcher.close()
    drawn = [run.results["84"].detail for run in (*runs.values(), again)]
    if len(set(drawn)) < len(drawn):
        runs["native-warm"].results["84"] = harness.Result("84", "succeeded", f"two are equal: {drawn}")
    return runs


def _told(results: Results, *outcomes: str) -> list[str]:
    return [
        f"{id} {ATTEMPTS[id].name if id in ATTEMPTS else ''}: {result.outcome}: {result.detail}"
        for id, result in results.items()
        if result.outcome in outcomes
    ]


def test_every_attempt_works_where_nothing_stops_it(controls: Results) -> None:
    assert _told(controls, "refused", "broken") == []
    assert sum(result.outcome == "succeeded" for result in controls.values()) >= ENOUGH


@pytest.mark.parametrize("kind", KINDS)
def test_no_attempt_succeeds(battery: Battery, controls: Results, kind: str) -> None:
    results = battery.runs[kind].results
    assert _told(results, "succeeded", "broken") == []
    untried = [id for id, result in results.items() if result.outcome == "n/a" and controls[id].outcome == "succeeded"]
    assert untried == []
    assert len(report.counted(results)) >= ENOUGH


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_inside_has_the_hosts_root(battery: Battery, kind: str) -> None:
    assert battery.runs[kind].host_uid != 0
    assert battery.runs[kind].level in ("S2", "S3")


def test_the_host_is_as_it_was(battery: Battery) -> None:
    assert battery.differences == []


def test_the_peer_was_neither_signalled_nor_ended(battery: Battery) -> None:
    assert battery.peer_untouched


def test_no_process_is_left(battery: Battery) -> None:
    assert battery.survivors == {}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_alone_stops_what_is_attributed_to_it(controls: Results, layer: str) -> None:
    if layer == "namespaces":
        stage, lease = harness.new_stage()
        results = asyncio.run(harness.run_namespaces_alone(stage, lease))
        lease.release()
        if controls["36"].outcome == "succeeded":
            bare = Stage(ordinary_uid(), owned=True)
            results |= harness.run_outside(bare, ["36"], layer="namespaces")
            bare.close()
    else:
        stage = Stage(ordinary_uid(), owned=True)
        if layer == "egress":
            results = asyncio.run(harness.run_egress_alone(stage))
        else:
            possible = [id for id in harness.attributed(layer) if controls[id].outcome == "succeeded"]
            results = harness.run_outside(stage, possible, layer=layer)
    stage.close()
    report.LAYER[layer] = results
    assert results
    assert _told(results, "succeeded", "broken", "n/a") == []


def test_a_changed_host_would_be_noticed(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("before")
    before = hoststate.snapshot([canary], [os.geteuid()], harness.MARK)
    canary.write_text("after!")
    found = hoststate.differences(before, hoststate.snapshot([canary], [os.geteuid()], harness.MARK))
    assert len(found) == 1
    assert "canary" in found[0]


def test_a_surviving_process_would_be_noticed() -> None:
    import subprocess

    known = harness.survivors()
    # The shell ends at once; what it leaves behind becomes an orphan.
    done = subprocess.run(["sh", "-c", "sleep 30 >/dev/null 2>&1 & echo $!"], capture_output=True, text=True)
    orphan = int(done.stdout)
    found = harness.survivors(known)
    os.kill(orphan, 9)
    os.waitpid(orphan, 0)
    assert list(found) == [orphan]
