"""The tree each agent sees: memory, views, workspace and what others lent it.

`operations` understands the calls, `root` finds the backend, the backends (`stored`, `directory`, `views`, `shares`)
hold what is there, `recovery` tells after a crash what became of a file.
"""

from agent_os.kernel.vfs.backend import Snapshot, Usage
from agent_os.kernel.vfs.operations import Vfs
from agent_os.kernel.vfs.paths import normalise
from agent_os.kernel.vfs.recovery import Verified
from agent_os.kernel.vfs.root import Root
from agent_os.kernel.vfs.streams import Stream, Upload

__all__ = ["Root", "Snapshot", "Stream", "Upload", "Usage", "Verified", "Vfs", "normalise"]
