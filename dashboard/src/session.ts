// Who looks: a session got for a one-time code. It lives in this tab only, and ends with the kernel that gave it.
import { computed, signal } from "@preact/signals";
import { asProblem, get, post, remove } from "./api";
import type { Session } from "./types";

const PLACE = "agent-os.session";

export interface Ended {
  reason: string;
  hint: string;
}

export const session = signal<Session | null>(stored());
export const ended = signal<Ended | null>(null); // why there is none any more
export const entering = signal(false);
export const operator = computed(() => session.value?.role === "operator");

function stored(): Session | null {
  try {
    const found = JSON.parse(sessionStorage.getItem(PLACE) ?? "null") as Session | null;
    return found && typeof found.session === "string" ? found : null;
  } catch {
    return null;
  }
}

/** Exchange a code for a session. A token of one's own (`aos_…`) is one already. */
export async function enter(word: string): Promise<void> {
  entering.value = true;
  try {
    leave();
    if (word.startsWith("aos_")) {
      session.value = { session: word, name: "", role: "viewer", boot: "" };
      keep({ ...(await get<Session>("/session")), session: word });
    } else {
      keep(await post<Session>("/session", { code: word.trim().toUpperCase() }));
    }
    ended.value = null;
  } catch (error) {
    const problem = asProblem(error);
    leave(problem.reason, problem.hint);
  } finally {
    entering.value = false;
  }
}

function keep(mine: Session): void {
  sessionStorage.setItem(PLACE, JSON.stringify(mine));
  session.value = mine;
}

/** End it here and in the kernel. A token of one's own stays good: only this tab forgets it. */
export async function quit(): Promise<void> {
  const mine = session.value;
  if (mine?.session.startsWith("aoss_")) {
    try {
      await remove("/session");
    } catch {
      // the kernel is not there, or the session was over already: either way it is forgotten here
    }
  }
  leave("you left");
}

export function leave(reason = "", hint = ""): void {
  sessionStorage.removeItem(PLACE);
  session.value = null;
  ended.value = reason ? { reason, hint } : null;
}
