"""What a model agent is bound by, as its program takes it: `[program]`, `[program.loop]` and `tools` in one table.

In: a manifest, and its output schema as it was read from the file that it names. Out: plain values, which the kernel
hands to `userland/model_agent.py` as its input. Reads no file and knows no model.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from agent_os.manifest.model import AgentManifest


def terms(
    manifest: AgentManifest, output_schema: Mapping[str, Any] | None = None, *, model: str = "", window: int = 0
) -> dict[str, Any]:
    """`model`: another one than the manifest's, which then counts for nothing, its fallbacks included. `window`: what
    is known of the model's context, in tokens."""
    program, bounds = manifest.program, asdict(manifest.program.loop)
    denied = set(manifest.tools_deny)
    return {
        **bounds,
        "model": model or program.model,
        "fallback": [] if model else list(program.loop.fallback),
        "goal": program.goal,
        "instructions": program.instructions,
        "tools": [name for name in manifest.tools if name not in denied],
        "output_schema": None if output_schema is None else dict(output_schema),
        "window": program.loop.window or window,
    }
