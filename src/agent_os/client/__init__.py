"""The one way to talk to a running kernel: `connect` to it, or have it `started` first.

Imports abi only. Nothing is imported here, so that a front door pays for what it uses.
"""
