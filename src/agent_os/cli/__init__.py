"""agentctl: the operator's front door. Imports abi and the composition root, never kernel or sandbox directly."""
