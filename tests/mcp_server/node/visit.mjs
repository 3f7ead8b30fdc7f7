// The official TypeScript client, one step a line: {"list": true} or {"call": NAME, "with": {…}} comes in, what the
// server said goes out. Arguments: the directory of the modules, and how to reach the server.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [modules, way] = [process.argv[2], JSON.parse(process.argv[3])];
const load = createRequire(`${modules}/visit.js`);
const { Client, StreamableHTTPClientTransport } = load("@modelcontextprotocol/client");
const { StdioClientTransport } = load("@modelcontextprotocol/client/stdio");

const transport = way.url
  ? new StreamableHTTPClientTransport(new URL(way.url), { requestInit: { headers: way.headers } })
  : new StdioClientTransport(way);
const options = way.mode ? { versionNegotiation: { mode: way.mode } } : {};
const client = new Client({ name: "visit", version: "1" }, { ...options, capabilities: {} });
const say = (said) => process.stdout.write(`${JSON.stringify(said)}\n`);

await client.connect(transport);
say({ revision: client.getNegotiatedProtocolVersion(), server: client.getServerVersion()?.name });
for await (const line of createInterface({ input: process.stdin })) {
  const step = JSON.parse(line);
  try {
    if (step.list) say((await client.listTools(undefined, { cacheMode: "refresh" })).tools.map((tool) => tool.name));
    else say(await client.callTool({ name: step.call, arguments: step.with ?? {} }));
  } catch (error) {
    say({ thrown: String(error) });
  }
}
await client.close();
