"""The real daemon with tools that write to a ledger: `fleet_process.py HOME --socket SOCKET --ready-fd FD`."""

import sys
from pathlib import Path
from typing import Any

from agent_os.daemon import process as daemon
from agent_os.kernel import boot
from agent_os.kernel.kernel import Kernel
from faults.ledger import Ledger

HOME = Path(sys.argv[1])


class Ledgered(Kernel):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for tool in Ledger(HOME / "ledger").tools():
            self.tools.register(tool)


boot.Kernel = Ledgered
sys.exit(daemon.main(["--home", *sys.argv[1:]]))
