// Whole lists, page after page, as one answer that stays true like `useGet`.
import { useEffect, useRef, useState } from "preact/hooks";
import { all, asProblem, type Problem, type Query } from "../api";
import { Pace, Round } from "../pace";
import { link, listen } from "../store";
import type { StreamEvent } from "../types";
import { STORM_MS, type Got } from "./get";

interface Options {
  query?: Query;
  on?: string[];
  when?: (event: StreamEvent) => boolean; // of those, which
  every?: number;
  most?: number;
}

const AGAIN_MS = 1000;

export function useAll<T>(paths: string[], join: (lists: unknown[][]) => T, options: Options = {}): Got<T> {
  const key = JSON.stringify([paths, options.query]);
  const [state, set] = useState<{ key: string; data?: T; problem?: Problem }>({ key: "" });
  const [turn, again] = useState(0);
  const latest = useRef({ join, options });
  latest.current = { join, options };
  const round = useRef<Round | undefined>(undefined);
  const live = link.value === "live";

  useEffect(() => {
    let wanted = true;
    const { query, most = 5000 } = latest.current.options;
    Promise.all(paths.map((path) => all<unknown>(path, query, most))).then(
      (lists) => {
        if (!wanted) return;
        round.current?.heard(lists);
        set({ key, data: latest.current.join(lists) });
      },
      (error) => wanted && set((old) => ({ key, data: old.key === key ? old.data : undefined, problem: asProblem(error) })),
    );
    return () => {
      wanted = false;
    };
  }, [key, turn, live]);

  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const pace = new Pace(AGAIN_MS, STORM_MS);
    const stop = listen((events) => {
      const { on, when } = latest.current.options;
      if (timer !== undefined || !events.some((event) => on?.includes(event.type) && (when?.(event) ?? true))) return;
      timer = setTimeout(() => {
        timer = undefined;
        pace.looked();
        again((old) => old + 1);
      }, Math.max(AGAIN_MS, pace.wait()));
    });
    round.current = options.every ? new Round(options.every, () => again((old) => old + 1)) : undefined;
    return () => {
      stop();
      clearTimeout(timer);
      round.current?.stop();
      round.current = undefined;
    };
  }, [key, options.every]);

  const mine = state.key === key ? state : undefined;
  return { data: mine?.data, problem: mine?.problem, loading: mine === undefined, reload: () => again((old) => old + 1) };
}
