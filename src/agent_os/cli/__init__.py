"""agentctl: the operator's front door. Imports abi and the composition root, never kernel or sandbox directly."""

import sys

# Our modules are compiled once: with PYTHONDONTWRITEBYTECODE, each command would take three times as long.
sys.dont_write_bytecode = False
