"""What the gate's steps leave on a call, so that it can be given back, asked about and recorded. Data only."""

from collections.abc import Sequence

from msgspec import Struct

from agent_os.drivers.store import Put
from agent_os.kernel.authority.approvals import Wake
from agent_os.kernel.authority.budget import Held
from agent_os.kernel.authority.charges import Charge
from agent_os.kernel.authority.labels import CLEAN, Label
from agent_os.kernel.authority.policy.layers import Decision
from agent_os.kernel.authority.questions import Question


class Marks(Struct, eq=False):
    """What the steps leave on a call."""

    dry: bool = False
    decision: Decision | None = None  # of the policy, where it has anything to say
    label: Label = CLEAN
    questions: list[Question] = []  # of policy and labels; each call has its own list, msgspec sees to that
    held: Held | None = None  # at the accounts of the agent and all above it
    charge: Charge | None = None  # at the handle and all above it
    approval: str = ""  # what it waits for, or acts under
    wake: Wake | None = None
    rated: Sequence[object] = ()  # the rules whose rate has counted it already, before it waited
    tried: bool = False  # what rules in shadow mode would have said was told already, before it waited
    puts: list[Put] = []  # for the entry that makes the act certain

    def begin(self) -> None:
        """The call passes the gate again: what was said of it before is said anew."""
        self.decision = None
        self.questions.clear()
        self.puts.clear()
