// An agent in Node, without any package: it speaks the wire of docs/wire.md on descriptor 3.
// It says hello, writes an entry of its own memory, reads it again, and leaves with a result.

import net from "node:net";
import { decode, encode } from "./msgpack.mjs";

const [HELLO, WELCOME, CALL, REPLY, ERROR, PUSH, BYE] = [0, 1, 2, 3, 4, 9, 11];
const SYS = { READ: 1, WRITE: 2, EXIT: 8 };
const MAX_FRAME = 1 << 20;

class Kernel {
  #socket = new net.Socket({ fd: 3, readable: true, writable: true });
  #buffer = Buffer.alloc(0);
  #open = new Map(); // id → who waits
  #last = 0;
  #seen = 0; // answers and pushes so far
  welcome;

  constructor() {
    this.welcome = new Promise((resolve, reject) => this.#open.set("welcome", { resolve, reject }));
    this.#socket.on("data", (data) => this.#received(data));
    this.#socket.on("close", () => this.#lost(new Error("EPIPE: the kernel closed the connection")));
    this.#socket.on("error", (problem) => this.#lost(problem));
    this.#send([HELLO, 1, 1, []]);
  }

  call(op, body) {
    const id = ++this.#last;
    return new Promise((resolve, reject) => {
      this.#open.set(id, { resolve, reject });
      // cap, deadline and key are left to the kernel; pos is the call's place in this sequential program
      this.#send([CALL, id, op, body, null, null, null, `0:${id}`, this.#seen]);
    });
  }

  // There is no answer to it. What was written before is sent first, then the connection ends.
  async exit(status, result, failure = null) {
    if (this.#socket.destroyed) return; // the kernel is gone, and knows
    this.#send([CALL, ++this.#last, SYS.EXIT, { status, result, failure }]);
    await new Promise((resolve) => this.#socket.end(resolve));
    this.#socket.destroy();
  }

  #send(frame) {
    const data = encode(frame);
    const length = Buffer.alloc(4);
    length.writeUInt32LE(data.length);
    this.#socket.write(Buffer.concat([length, data]));
  }

  #received(data) {
    this.#buffer = Buffer.concat([this.#buffer, data]);
    try {
      while (this.#buffer.length >= 4) {
        const size = this.#buffer.readUInt32LE(0);
        if (size > MAX_FRAME) throw new Error(`EMSGSIZE: a frame of ${size} bytes`);
        if (this.#buffer.length < 4 + size) return;
        const frame = decode(this.#buffer.subarray(4, 4 + size));
        this.#buffer = this.#buffer.subarray(4 + size);
        this.#take(frame);
      }
    } catch (problem) {
      this.#lost(problem);
      this.#socket.destroy();
    }
  }

  #take([kind, ...fields]) {
    if (kind === WELCOME) {
      const [abi, agent, incarnation, limits, features, replaying, input] = fields;
      this.#settle("welcome", (one) => one.resolve({ abi, agent, incarnation, limits, features, replaying, input }));
    } else if (kind === REPLY) {
      this.#seen += 1;
      this.#settle(fields[0], (one) => one.resolve(fields[1]));
    } else if (kind === ERROR) {
      this.#seen += 1;
      const [id, code, , , reason, , detail] = fields;
      this.#settle(id, (one) => one.reject(Object.assign(new Error(reason), { number: code, code: detail?.code })));
    } else if (kind === PUSH) {
      const [, what, body] = fields;
      if (body?.type !== "live") this.#seen += 1;
      if (what === "signal" && body.signal === 5) this.exit(143, null, "ended by SIGTERM").then(() => process.exit(143));
    } else if (kind === BYE) {
      throw new Error(`BYE ${fields[0]}: ${fields[1]}`);
    } else if (kind < 128) {
      throw new Error(`EPROTO: kind ${kind}`);
    }
  }

  #settle(id, how) {
    const one = this.#open.get(id);
    if (!one) throw new Error(`EPROTO: an answer to ${id}, which was not asked`);
    this.#open.delete(id);
    how(one);
  }

  #lost(problem) {
    for (const one of this.#open.values()) one.reject(problem);
    this.#open.clear();
  }
}

const kernel = new Kernel();
try {
  const { agent, input } = await kernel.welcome;
  const path = "/mem/working/greeting.txt";
  await kernel.call(SYS.WRITE, { path, data: `Hello from Node, ${input?.name ?? agent}` });
  const { data, version } = await kernel.call(SYS.READ, { path });
  console.log(data);
  await kernel.exit(0, { greeting: data, version });
} catch (problem) {
  console.error(problem.message);
  await kernel.exit(1, null, problem.message);
  process.exitCode = 1;
}
