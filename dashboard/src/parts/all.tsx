// Whole lists, page after page, as one answer that stays true like `useGet`.
import { all } from "../api";
import { useReading, type Got, type Options } from "./get";

const AGAIN_MS = 1000;

export function useAll<T>(paths: string[], join: (lists: unknown[][]) => T, options: Options & { most?: number } = {}): Got<T> {
  const { query, most = 5000 } = options;
  const read = () => Promise.all(paths.map((path) => all<unknown>(path, query, most)));
  const shape = (lists: unknown) => join(lists as unknown[][]);
  return useReading(JSON.stringify([paths, query]), { read, shape, again: AGAIN_MS }, options);
}
