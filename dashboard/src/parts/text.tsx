// Values in words. Text that agents wrote is text only, and what would hide or turn it round is made visible.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";

// Controls except tab and newline, direction marks, zero-width and other invisible characters, stray surrogates.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/gu;

/** `a\u202eb` → pieces with `U+202E` in between. */
export function visible(text: string): (string | { code: string })[] {
  const pieces: (string | { code: string })[] = [];
  let from = 0;
  for (const found of text.matchAll(HIDDEN)) {
    if (found.index > from) pieces.push(text.slice(from, found.index));
    const point = found[0].codePointAt(0) ?? 0;
    pieces.push({ code: `U+${point.toString(16).toUpperCase().padStart(4, "0")}` });
    from = found.index + found[0].length;
  }
  if (from < text.length) pieces.push(text.slice(from));
  return pieces;
}

/** The same as one string, where there is no room for markup: attributes, titles. */
export function harmless(text: string): string {
  return visible(text)
    .map((one) => (typeof one === "string" ? one : `⟨${one.code}⟩`))
    .join("");
}

/** Text that an agent wrote, or may have had a hand in: names, arguments, reasons, messages. */
export function AgentText({ text, block = false }: { text: unknown; block?: boolean }) {
  const pieces = visible(typeof text === "string" ? text : asText(text)).map((one, index) =>
    typeof one === "string" ? one : <span key={index} class="hidden-char">{one.code}</span>,
  );
  return block ? <pre class="agent-text" tabIndex={0}>{pieces}</pre> : <bdi class="agent-text">{pieces}</bdi>;
}

export function asText(value: unknown): string {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

const ticking = new Set<() => void>();
setInterval(() => ticking.forEach((tick) => tick()), 1000);

/** Draws the component anew every second, for ages and deadlines. */
export function useClock(): number {
  const [now, set] = useState(Date.now());
  useEffect(() => {
    const tick = () => set(Date.now());
    ticking.add(tick);
    return () => void ticking.delete(tick);
  }, []);
  return now;
}

export function clock(at: Date | string | number): string {
  const moment = new Date(at);
  const time = moment.toLocaleTimeString("en-GB");
  return moment.toDateString() === new Date().toDateString() ? time : `${moment.toLocaleDateString("en-CA")} ${time}`;
}

export function age(seconds: number): string {
  const s = Math.max(0, seconds);
  if (s < 100) return `${Math.round(s)} s`;
  if (s < 6000) return `${Math.round(s / 60)} min`;
  return s < 172_800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86_400)} d`;
}

export function size(bytes: number | null | undefined): string {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "kB", "MB", "GB"];
  let value = bytes;
  while (value >= 1000 && units.length > 1) {
    value /= 1000;
    units.shift();
  }
  return `${value < 10 && units[0] !== "B" ? value.toFixed(1) : Math.round(value)} ${units[0]}`;
}

export function count(number: number): string {
  return number.toLocaleString("en-US");
}

/** `at`: ISO 8601, milliseconds or a Date. */
export function Time({ at }: { at: Date | string | number | null | undefined }) {
  if (at === null || at === undefined) return <span>–</span>;
  const moment = new Date(at);
  if (Number.isNaN(moment.getTime())) return <span>–</span>;
  return (
    <time dateTime={moment.toISOString()} title={moment.toISOString()}>
      {clock(moment)}
    </time>
  );
}

export function Ago({ at }: { at: Date | string | number }) {
  const now = useClock();
  return (
    <time dateTime={new Date(at).toISOString()} title={new Date(at).toISOString()}>
      {age((now - new Date(at).getTime()) / 1000)} ago
    </time>
  );
}

/** Dollars. Accounts count in millionths (`micro`). */
export function money(usd: number): string {
  const digits = usd !== 0 && Math.abs(usd) < 0.1 ? 4 : 2;
  return `$${usd.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

export function Money({ usd, micro }: { usd?: number; micro?: number }) {
  return <span class="number">{money(usd ?? (micro ?? 0) / 1e6)}</span>;
}

export function Code({ children }: { children: ComponentChildren }) {
  return <code class="command">{children}</code>;
}
