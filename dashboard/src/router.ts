// Where the page is: `#/agent/default%2Fclock?tab=logs`. A one-time code in the fragment never stays there.
import { signal } from "@preact/signals";

export interface Route {
  page: string;
  args: string[];
  query: Record<string, string>;
}

export const route = signal<Route>(read());

function read(): Route {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const [page = "", ...args] = path.split("/").map(decoded);
  return { page: page || "overview", args, query: Object.fromEntries(new URLSearchParams(query)) };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a stray percent sign is nobody's error
  }
}

/** The code of `#code=K7QM-2XPD`, taken out of the address at once. */
export function takeCode(): string | null {
  const found = /^#code=([^&]*)/.exec(location.hash);
  if (!found) return null;
  history.replaceState(null, "", `${location.pathname}#/`);
  route.value = read();
  return decoded(found[1] ?? "");
}

export function href(page: string, args: string[] = [], query: Record<string, string> = {}): string {
  const path = [page, ...args].map(encodeURIComponent).join("/");
  const search = new URLSearchParams(query).toString();
  return `#/${path}${search ? `?${search}` : ""}`;
}

export function go(page: string, args: string[] = [], query: Record<string, string> = {}): void {
  location.hash = href(page, args, query);
}

/** Change what is after the question mark, without a new entry of the history; an empty value takes the name away. */
export function keep(query: Record<string, string>): void {
  const { page, args, query: old } = route.value;
  const merged = Object.fromEntries(Object.entries({ ...old, ...query }).filter(([, value]) => value !== ""));
  history.replaceState(null, "", href(page, args, merged));
  route.value = read();
}

export function follow(onCode: (code: string) => void): void {
  const look = () => {
    const code = takeCode();
    if (code !== null) onCode(code);
    else route.value = read();
  };
  addEventListener("hashchange", look);
  look();
}
