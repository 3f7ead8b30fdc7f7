"""Workspaces: where an agent's writes go until somebody decides about them. `kept` is where to begin reading."""

from agent_os.kernel.workspace.kept import Workspace, Workspaces, digest, new_name, new_names

__all__ = ["Workspace", "Workspaces", "digest", "new_name", "new_names"]
