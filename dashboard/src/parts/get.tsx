// A read of the gateway that stays true: once more after a cut, and whenever an event of the named types comes.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { asProblem, get, type Problem, type Query } from "../api";
import { Pace, Round } from "../pace";
import { link, listen } from "../store";
import type { StreamEvent } from "../types";
import { ErrorBox, Loading } from "./states";

export interface Got<T> {
  data: T | undefined;
  problem: Problem | undefined;
  loading: boolean;
  reload: () => void;
}

export interface Options {
  query?: Query;
  on?: string[]; // types of events after which it is read again
  when?: (event: StreamEvent) => boolean; // of those, which
  every?: number; // milliseconds; for what has no event; ever more seldom while nothing changes
}

export const AGAIN_MS = 500;
export const STORM_MS = 4000; // while changes keep coming

/** `path` null: nothing is asked for yet. While it is read again the old answer stays. */
export function useGet<T>(path: string | null, options: Options = {}): Got<T> {
  const [state, set] = useState<{ key: string; data?: T; problem?: Problem }>({ key: "" });
  const [turn, again] = useState(0);
  const latest = useRef(options);
  latest.current = options;
  const round = useRef<Round | undefined>(undefined);
  const key = path === null ? "" : `${path} ${JSON.stringify(options.query ?? {})}`;
  const live = link.value === "live";

  useEffect(() => {
    if (path === null) return;
    let wanted = true;
    get<T>(path, latest.current.query).then(
      (data) => {
        if (!wanted) return;
        round.current?.heard(data);
        set({ key, data });
      },
      (error) => wanted && set((old) => ({ key, data: old.key === key ? old.data : undefined, problem: asProblem(error) })),
    );
    return () => {
      wanted = false;
    };
  }, [key, turn, live]);

  useEffect(() => {
    if (path === null) return;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const pace = new Pace(AGAIN_MS, STORM_MS);
    const stop = listen((events) => {
      const { on, when } = latest.current;
      if (timer !== undefined || !on) return;
      if (!events.some((event) => on.includes(event.type) && (when?.(event) ?? true))) return;
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
  return {
    data: mine?.data,
    problem: mine?.problem,
    loading: path !== null && mine === undefined,
    reload: () => again((old) => old + 1),
  };
}

/** Loading, error or the answer: what every part of a page is. */
export function Loaded<T>({ got, lines, children }: { got: Got<T>; lines?: number; children: (data: T) => ComponentChildren }) {
  return (
    <>
      {got.problem ? <ErrorBox problem={got.problem} retry={got.reload} /> : null}
      {got.data !== undefined ? children(got.data) : got.problem ? null : <Loading lines={lines} />}
    </>
  );
}
