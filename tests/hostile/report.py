"""The battery's tables: what each attempt did where, and which layer alone stops it. Collected by the tests, printed at
the end, and kept as JSON next to the other caches."""

import json
import tempfile
from pathlib import Path
from typing import Any

from hostile.battery import ATTEMPTS
from hostile.harness import LAYERS, Results, mode

CONTROL: Results = {}
KIND: dict[str, Results] = {}
LAYER: dict[str, Results] = {}
LEVEL: dict[str, str] = {}
OWN: list[tuple[str, str, str]] = []  # number, name, why it has no control: attempts with a half in the kernel
DIFFERENCES: list[str] = []

_SIGN = {"refused": "held", "succeeded": "REACHED", "n/a": "n/a", "recorded": "recorded", "broken": "BROKEN"}


def counted(results: Results) -> list[str]:
    """Held, and shown to be possible without the sandbox."""
    return [id for id, result in results.items() if result.outcome == "refused" and _control(id) == "succeeded"]


def _control(id: str) -> str:
    return CONTROL[id].outcome if id in CONTROL else "n/a"


def note(number: str, name: str, *, no_control: str = "") -> None:
    """An attempt with a half in the kernel that was held. The last line of its test: whatever the test asserts of the
    control is true by then. Without one, say why; it is counted apart."""
    OWN.append((number, name, no_control))


def lines() -> list[str]:
    kinds = list(KIND)
    out = ["", f"Escape battery, {mode()}, {', '.join(f'{kind}: {LEVEL[kind]}' for kind in kinds)}"]
    out.append(
        f"{'no.':<5} {'attempt':<62} {'control':<8} " + " ".join(f"{kind:<11}" for kind in kinds) + " stopped by"
    )
    for one in sorted(ATTEMPTS.values(), key=lambda one: (int(one.id.rstrip("bcdefgh")), one.id)):
        control = {"succeeded": "works"}.get(_control(one.id), _control(one.id))
        cells = " ".join(f"{_cell(one.id, KIND[kind]):<11}" for kind in kinds)
        out.append(f"{one.id:<5} {one.name[:62]:<62} {control:<8} {cells} {', '.join(one.layers)}")
    out += [f"{number:<5} {name[:62]:<62} {'none' if reason else 'works':<8} held" for number, name, reason in OWN]
    out += ["", f"{'layer alone':<14} {'stopped':>8}  attempts"]
    for layer in LAYERS:
        results = LAYER.get(layer, {})
        held = [id for id, result in results.items() if result.outcome == "refused"]
        out.append(f"{layer:<14} {f'{len(held)}/{len(results)}':>8}  {' '.join(results)}")
    out.append("")
    for word in ("n/a", "recorded"):
        out += [f"{word:<8} {id:<4} {result.detail}" for id, result in CONTROL.items() if result.outcome == word]
    out += [
        f"no control {number:<4} {reason}" for number, reason in sorted({(row[0], row[2]) for row in OWN if row[2]})
    ]
    for kind in kinds:
        totals = [result.outcome for result in KIND[kind].values()]
        out.append(
            f"{kind}: {len(counted(KIND[kind]))} held, {totals.count('succeeded')} reached, "
            f"{totals.count('broken')} broken, {len(totals) - len(counted(KIND[kind]))} not counted"
        )
    without = sum(bool(reason) for _, _, reason in OWN)
    out.append(f"with a half in the kernel: {len(OWN) - without} held, {without} held without a control, not counted")
    out.append(f"host state: {DIFFERENCES or 'unchanged'}")
    return out


def _cell(id: str, results: Results) -> str:
    if id not in results:
        return "-"
    outcome = results[id].outcome
    return "n/a" if outcome == "refused" and _control(id) != "succeeded" else _SIGN[outcome]


def save(root: Path) -> Path:
    """Below the checkout's cache where that can be written, else in a temporary directory."""
    folder = root / ".cache"
    try:
        folder.mkdir(exist_ok=True)
        path = folder / "battery.json"
        kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(kept | {mode(): _value()}, indent=1))
    except (OSError, ValueError):
        path = Path(tempfile.gettempdir(), "agent-os-battery.json")
        path.write_text(json.dumps({mode(): _value()}, indent=1))
    return path


def _value() -> dict[str, Any]:
    def plain(results: Results) -> dict[str, list[str]]:
        return {id: [result.outcome, result.detail] for id, result in results.items()}

    return {
        "control": plain(CONTROL),
        "kinds": {kind: plain(results) for kind, results in KIND.items()},
        "layers": {layer: plain(results) for layer, results in LAYER.items()},
        "levels": LEVEL,
        "own": OWN,
        "host": DIFFERENCES,
    }
