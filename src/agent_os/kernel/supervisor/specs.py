"""What was declared of an agent: its manifest as the store keeps it, and what supervision reads from it.

In: an `AgentManifest` and the folder it was written for. Out: a `Spec`, a value that is stored before anything is
started by it, and the terms, needs and words of it that the supervisor's parts are made for. Reads no file.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from agent_os.kernel.supervisor.exits import status_of
from agent_os.kernel.supervisor.graph import Needs
from agent_os.kernel.supervisor.terms import Backoff, Jitter, Priority, RestartPolicy, Strategy, Supervision, Terms

if TYPE_CHECKING:
    from agent_os.manifest.model import AgentManifest

ROOT_ID = "system/root"


class Spec(msgspec.Struct, frozen=True, dict=True):
    """A manifest with its place. `tree` has every key, in TOML's words."""

    tree: dict[str, Any]
    base: str  # the folder that its program and its relative paths are in
    file: str = ""  # where it was read from, for people
    role: str = ""  # as people write it
    index: int = 0  # its place in the order in which agents were declared
    spawned: bool = False  # by an agent, not declared: it is there as long as its parent's run

    @classmethod
    def of(cls, manifest: "AgentManifest", base: str, file: str = "", *, spawned: bool = False) -> "Spec":
        from agent_os.manifest import writing

        tree = writing.plain(manifest)
        del tree["capabilities"]["resource_limits"]  # the same numbers stand in [resources] and [budget]
        tree["agency"] = writing.agency(manifest)
        made = cls(tree, base, file, str(manifest.role), spawned=spawned)
        vars(made)["manifest"] = manifest  # it need not be read again
        return made

    @property
    def id(self) -> str:
        return f"{self.tree['namespace']}/{self.tree['name']}"

    @cached_property
    def manifest(self) -> "AgentManifest":
        """The value itself. Reading it takes a moment, and few ask."""
        from agent_os.manifest.model import AgentManifest

        return AgentManifest.from_dict(self.tree, self.file)

    def same(self, other: "Spec") -> bool:
        """Whether both declare the same, wherever they were read from."""
        return (self.tree, self.base) == (other.tree, other.base)

    @cached_property
    def runtime(self) -> str:
        """python, exec or model; empty: there is no program."""
        from agent_os.manifest.settling import runtime

        return runtime(self.manifest.program)

    # What supervision asks of everybody at boot comes straight from the tree: a manifest takes milliseconds to read.

    @cached_property
    def terms(self) -> Terms:
        health: dict[str, Any] = self.tree["health"]
        backoff: dict[str, Any] = health["backoff"]
        jitter: Jitter = "none" if backoff["jitter"] == "none" else "equal"
        return Terms(
            policy=RestartPolicy(health["restart_policy"]),
            max_restarts=health["max_restarts"],
            stable_secs=float(health["stable_secs"]),
            success_codes=frozenset(map(status_of, health["success_exit_codes"])),
            no_restart_codes=frozenset(map(status_of, health["no_restart_exit_codes"])),
            force_restart_codes=frozenset(map(status_of, health["force_restart_exit_codes"])),
            max_deaths=self.tree["interface"]["max_deaths"],
            backoff=Backoff(backoff["base_ms"], backoff["cap_ms"], jitter),
        )

    @cached_property
    def supervision(self) -> Supervision:
        own = self.tree["supervision"]
        return Supervision(Strategy(own["strategy"]), own["intensity"], float(own["period_secs"]))

    @cached_property
    def needs(self) -> Needs:
        own = self.tree["dependencies"]
        return Needs(*(tuple(own[key]) for key in ("requires", "after", "wants", "binds_to")))

    @property
    def children(self) -> list[str]:
        """As written: ids, or bare names."""
        return self.tree["supervision"]["children"]

    @property
    def priority(self) -> Priority:
        return self.tree["resources"]["priority"]

    @property
    def activation(self) -> str:
        return self.tree["lifecycle"]["activation"]

    @property
    def is_called(self) -> bool:
        """By the clock or by a message: it rests between its runs."""
        return self.activation in ("on_schedule", "on_message")

    @property
    def schedule(self) -> tuple[str, str]:
        """The expression and its zone."""
        return self.tree["lifecycle"]["schedule"], self.tree["lifecycle"]["timezone"]

    @property
    def grace_secs(self) -> float:
        return float(self.tree["lifecycle"]["grace_secs"])

    @property
    def on_failure(self) -> list[str]:
        return self.tree["health"]["on_failure"]
