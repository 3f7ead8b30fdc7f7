"""The journal: the record of everything decided and done, and the kernel's write-ahead log. See `journal.py`."""

from agent_os.kernel.journal.draft import Draft
from agent_os.kernel.journal.heads import Signer
from agent_os.kernel.journal.journal import Journal

__all__ = ["Draft", "Journal", "Signer"]
