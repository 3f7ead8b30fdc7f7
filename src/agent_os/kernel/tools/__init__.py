"""Tools: what is registered, what a call of one needs and gives, and how well each does.

`spec` checks what a tool declares, `versions` orders and picks, `schema` holds values against JSON Schema, `registry`
finds tools and prepares calls, `output` bounds what they give, `health` counts. `oneshot` runs a command in a sandbox
of its own. All but the last are pure.
"""
