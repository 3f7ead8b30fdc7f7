// The one way to the gateway: typed fetch, the session as bearer, and every failure as a Problem in the kernel's words.
import { session, leave } from "./session";

export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly reason: string,
    readonly hint: string,
    readonly retryable: boolean,
    readonly more: Record<string, unknown> = {},
  ) {
    super(reason);
  }
}

const BASE = "/api/v1";
const TIMEOUT_MS = 30_000;

export type Query = Record<string, string | number | boolean | string[] | null | undefined>;

export const get = <T>(path: string, query?: Query) => call<T>("GET", path, undefined, query);
export const post = <T>(path: string, body: unknown = {}) => call<T>("POST", path, body);
export const put = <T>(path: string, body: unknown) => call<T>("PUT", path, body);
export const patch = <T>(path: string, body: unknown) => call<T>("PATCH", path, body);
export const remove = <T>(path: string) => call<T>("DELETE", path);

interface Operation<T> {
  id: string;
  state: "running" | "done" | "failed";
  result?: T;
  error?: unknown;
}

const LOOK_MS = 500;

/** Like `post`; what takes long is looked at until it is over. */
export async function finished<T>(path: string, body: unknown = {}): Promise<T> {
  let told = await post<T | Operation<T>>(path, body);
  while (isOperation<T>(told)) {
    if (told.state === "done") return told.result as T;
    if (told.state === "failed") throw problemOf(0, told.error);
    await new Promise((done) => setTimeout(done, LOOK_MS));
    told = await get<Operation<T>>(`/operations/${told.id}`);
  }
  return told;
}

function isOperation<T>(told: unknown): told is Operation<T> {
  return typeof told === "object" && told !== null && "state" in told && "began" in told;
}

export async function call<T>(method: string, path: string, body?: unknown, query?: Query, key?: string): Promise<T> {
  const mine = session.value;
  const headers: Record<string, string> = { accept: "application/json" };
  if (mine) headers.authorization = `Bearer ${mine.session}`;
  if (method !== "GET") headers["content-type"] = "application/json";
  if (key) headers["idempotency-key"] = key;
  let answer: Response;
  try {
    answer = await fetch(BASE + path + search(query), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(TIMEOUT_MS),
      credentials: "omit",
      referrerPolicy: "no-referrer",
    });
  } catch {
    throw new Problem(0, "UNREACHABLE", "the gateway does not answer", "agentctl status tells whether it runs", true);
  }
  const told = await content(answer);
  if (answer.ok) return told as T;
  const problem = problemOf(answer.status, told);
  if (answer.status === 401 && mine && session.value === mine) leave(problem.reason, problem.hint);
  throw problem;
}

function search(query: Query = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const pairs = given.flatMap(([name, value]) => (Array.isArray(value) ? value : [value]).map((one) => [name, String(one)]));
  return pairs.length ? `?${new URLSearchParams(pairs)}` : "";
}

async function content(answer: Response): Promise<unknown> {
  const text = await answer.text();
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function problemOf(status: number, told: unknown): Problem {
  const facts = (told !== null && typeof told === "object" ? told : {}) as Record<string, unknown>;
  const word = (name: string) => (typeof facts[name] === "string" ? (facts[name] as string) : "");
  const reason = word("reason") || word("detail") || word("title") || `the gateway answered ${status}`;
  return new Problem(status, word("code") || `HTTP ${status}`, reason, word("hint"), facts.retryable === true, facts);
}

/** Whatever was thrown, as a Problem: a fault of the page itself is told, too. */
export function asProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  return new Problem(0, "PAGE", String(error), "reload the page; if it stays, report it", true);
}

/** All items of a list, page after page, at most `most`. */
export async function all<T>(path: string, query: Query = {}, most = 2000): Promise<T[]> {
  const items: T[] = [];
  let cursor: string | null = null;
  do {
    const limit = Math.min(500, most - items.length);
    const part: { items: T[]; next: string | null } = await get(path, { ...query, limit, cursor });
    items.push(...part.items);
    cursor = part.next;
  } while (cursor && items.length < most);
  return items;
}
