"""Budgets that are filled again: by the hour, the day, the month, or with each run.

In: what manifests declare, and the wall clock. Out: at the beginning of a window, limits that leave an agent all of its
allowance over what it has spent by then, on the record like any other limit. A restart is no new window, and neither is
a new kernel: which window was last filled is stored. Spends nothing.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.drivers.store import Put
from agent_os.kernel.journal import Draft
from agent_os.kernel.supervisor.specs import Spec
from agent_os.lazy import lazy

if TYPE_CHECKING:
    from agent_os.kernel.supervisor import orders_of
    from agent_os.kernel.supervisor.fleet import Fleet
else:
    orders_of = lazy("agent_os.kernel.supervisor.orders_of")

WINDOWS = "windows"  # bucket: id → the window that was last filled
_FORMS = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "month": "%Y-%m"}
_EVERY = 1.0  # seconds between two looks at all of them


class Windows:
    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet
        self._filled = {key: value.decode() for key, value in fleet.kernel.store.items(WINDOWS)}
        self._looked = 0.0

    def look(self, now: float) -> None:
        if 0 <= now - self._looked < _EVERY:
            return
        self._looked = now
        for agent_id in self._filled.keys() & self._fleet.kept.specs.keys():
            self.fill(self._fleet.kept.specs[agent_id], now)

    def fill(self, spec: Spec, now: float) -> None:
        """If a window has begun since it was last filled. The first is filled by its start."""
        current, last = self._window(spec, now), self._filled.get(spec.id)
        if current == last:
            return
        limits = self.limits(spec)
        put = Put(WINDOWS, spec.id, current.encode())
        self._filled[spec.id] = current
        kernel = self._fleet.kernel
        if last is None or not limits:
            body = frames.encode_body({"event": "window", "window": current})
            kernel.journal.put(Draft(spec.id, Kind.BUDGET, body=body), sync=False, puts=[put])
            return
        cost = kernel.budgets.limit(spec.id, limits)
        body = frames.encode_body({"event": "window", "window": current, **cost})
        kernel.journal.put(Draft(spec.id, Kind.BUDGET, cost=cost, body=body), sync=True, puts=[put])

    def limits(self, spec: Spec) -> dict[str, int]:
        """All of its allowance, over what it has spent by now."""
        account = self._fleet.kernel.budgets.account(spec.id)
        return {one: account.used(one) + limit for one, limit in orders_of.allowance(spec.manifest).items()}

    def forget(self, agent_id: str) -> Put:
        self._filled.pop(agent_id, None)
        return Put(WINDOWS, agent_id, None)

    def _window(self, spec: Spec, now: float) -> str:
        per = str(spec.tree["budget"]["per"])
        if per in _FORMS:
            return datetime.fromtimestamp(now, UTC).strftime(_FORMS[per])
        run = self._fleet.kernel.store.get("lives", spec.id) or b"1"
        return f"run {run.decode()}"
