// Subscribes to a resource, says what it is told of it, and calls the tools that it is given by line.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ResourceUpdatedNotificationSchema } from "@modelcontextprotocol/sdk/types.js";
import { createInterface } from "node:readline";

const [url, uri] = process.argv.slice(2);
const client = new Client({ name: "listener", version: "1.0.0" });
client.setNotificationHandler(ResourceUpdatedNotificationSchema, (told) => console.log("updated", told.params.uri));
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
await client.subscribeResource({ uri });
console.log("subscribed");
for await (const tool of createInterface({ input: process.stdin })) {
  const result = await client.callTool({ name: tool, arguments: {} });
  console.log(result.isError ? JSON.stringify(result) : "called");
}
await client.close();
process.exit(0);
