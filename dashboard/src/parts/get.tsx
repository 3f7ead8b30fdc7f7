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

interface Reading<T> {
  read: () => Promise<unknown>;
  shape: (told: unknown) => T;
  again: number; // milliseconds, at least, between two readings for events
}

const AGAIN_MS = 500;
const STORM_MS = 4000; // while changes keep coming

/** `path` null: nothing is asked for yet. */
export function useGet<T>(path: string | null, options: Options = {}): Got<T> {
  const key = path === null ? null : `${path} ${JSON.stringify(options.query ?? {})}`;
  return useReading(key, { read: () => get(path ?? "", options.query), shape: (told) => told as T, again: AGAIN_MS }, options);
}

/** What `key` names. While it is read again the old answer stays. */
export function useReading<T>(key: string | null, reading: Reading<T>, options: Options): Got<T> {
  const [state, set] = useState<{ key: string | null; data?: T; problem?: Problem }>({ key: null });
  const [turn, again] = useState(0);
  const latest = useRef({ reading, options });
  latest.current = { reading, options };
  const round = useRef<Round | undefined>(undefined);
  const live = link.value === "live";
  const reload = () => again((old) => old + 1);

  useEffect(() => {
    if (key === null) return;
    let wanted = true;
    latest.current.reading.read().then(
      (told) => {
        if (!wanted) return;
        round.current?.heard(told);
        set({ key, data: latest.current.reading.shape(told) });
      },
      (error) => wanted && set((old) => ({ key, data: old.key === key ? old.data : undefined, problem: asProblem(error) })),
    );
    return () => {
      wanted = false;
    };
  }, [key, turn, live]);

  useEffect(() => {
    if (key === null) return;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const pace = new Pace(reading.again, STORM_MS);
    const stop = listen((events) => {
      const { on, when } = latest.current.options;
      if (timer !== undefined || !events.some((event) => on?.includes(event.type) && (when?.(event) ?? true))) return;
      timer = setTimeout(() => {
        timer = undefined;
        pace.looked();
        reload();
      }, Math.max(reading.again, pace.wait()));
    });
    round.current = options.every ? new Round(options.every, reload) : undefined;
    return () => {
      stop();
      clearTimeout(timer);
      round.current?.stop();
      round.current = undefined;
    };
  }, [key, options.every]);

  const mine = key !== null && state.key === key ? state : undefined;
  return { data: mine?.data, problem: mine?.problem, loading: key !== null && mine === undefined, reload };
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
