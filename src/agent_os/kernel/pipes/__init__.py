"""Typed pipes: what goes from agent to agent, held against registered types by the kernel itself.

`schemas` understands a JSON Schema and holds values against it, `types` binds names to schemas, `running` keeps how far
a pipe has come, `doors` is SYS_PIPE.
"""
