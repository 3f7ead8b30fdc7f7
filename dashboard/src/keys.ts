// Keys: `g` and a letter goes to a page, `/` to the search field, `j k` through rows, `?` helps. Nothing happens while
// somebody types, nor with a modifier held.
import { useEffect } from "preact/hooks";
import { signal } from "@preact/signals";
import { PAGES } from "./pages";
import { go } from "./router";

export const helpOpen = signal(false);
export type Keys = Record<string, (event: KeyboardEvent) => void>;

const stack: Keys[] = []; // the last one is asked first
const GO_MS = 1500;
let going = 0;

/** Keys of a page or a dialog, while it is shown. */
export function useKeys(keys: Keys): void {
  useEffect(() => {
    stack.push(keys);
    return () => void stack.splice(stack.indexOf(keys), 1);
  });
}

export function startKeys(): void {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented) return;
    if (typing(event.target)) return;
    if (performance.now() - going < GO_MS) {
      going = 0;
      const page = PAGES.find((one) => one.key === event.key);
      if (page) {
        event.preventDefault();
        go(page.id);
        return;
      }
    }
    const own = stack.findLast((keys) => event.key in keys)?.[event.key] ?? COMMON[event.key];
    if (own) {
      event.preventDefault();
      own(event);
    }
  });
}

const COMMON: Keys = {
  g: () => (going = performance.now()),
  "/": () => document.querySelector<HTMLElement>("[data-search]")?.focus(),
  "?": () => (helpOpen.value = !helpOpen.value),
  j: () => move(1),
  k: () => move(-1),
};

function typing(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
}

function move(step: number): void {
  const rows = [...document.querySelectorAll<HTMLElement>("main [data-row]")];
  const at = rows.indexOf(document.activeElement as HTMLElement);
  const next = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : at + step];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}
