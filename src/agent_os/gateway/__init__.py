"""The gateway: HTTP, WebSocket and MCP for people's programs, in a process of its own; a client of the kernel.

It translates. Each request's token goes to the kernel, which alone verifies it and decides; the gateway holds no key,
and its death touches no agent. Imports abi, client and manifest of ours. Nothing is imported here: FastAPI costs half a
second.
"""
