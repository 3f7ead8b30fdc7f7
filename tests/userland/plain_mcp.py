"""An MCP server made with the official SDK, which speaks both eras: on its standard streams, or with a port as
argument over streamable HTTP on the loopback."""

import sys

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings

server = MCPServer("plain", instructions="Counts words.")


@server.tool(title="Count words")
def count(text: str) -> int:
    """Number of words in a text."""
    return len(text.split())


@server.tool()
def fail() -> str:
    """Never works."""
    raise ToolError("it never works")


if len(sys.argv) > 1:
    anybody = TransportSecuritySettings(enable_dns_rebinding_protection=False)  # the tests have names of their own
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]), transport_security=anybody)
else:
    server.run("stdio")
