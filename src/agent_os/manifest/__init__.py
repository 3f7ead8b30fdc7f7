"""What people write about an agent: `.agent.toml`, roles, agency, capabilities, resources, health.

`model` is the table of contents: every key, its default and what it means. `reading` turns a text into an
`AgentManifest` or says all that is wrong with it; `writing` is the way back; `granting` says what it asks for. Plain
dataclasses on the standard library, but for what reads a schedule, so that the kernel reads what an agent hands in
with the very code that reads a person's file. Never touches a process, a socket or a clock.
"""
