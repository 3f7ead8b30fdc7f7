// An agent's memory as a tree: rows of entries become folders and what lies in them.

export interface EntryRow {
  path: string;
  size: number;
  version: number;
  writer: string;
  modified: number; // ns
  text: boolean;
  labels: string[];
  data?: unknown;
}

export interface ChangeRow {
  seq: number;
  at_ns: number;
  change: string;
  version: number;
  size: number;
  writer: string;
  gone: boolean;
}

export interface Leaf {
  path: string;
  name: string;
  depth: number;
  entry: EntryRow | null; // null: a folder
  inside: number; // entries at or below a folder
}

/** In order, folders before what is in them; what is below a folded one is left out. */
export function tree(rows: readonly EntryRow[], folded: ReadonlySet<string>): Leaf[] {
  const found: Leaf[] = [];
  const folders = new Map<string, Leaf>();
  for (const entry of [...rows].sort((a, b) => (a.path < b.path ? -1 : 1))) {
    const names = entry.path.split("/").filter(Boolean);
    let hidden = false;
    let path = "";
    names.slice(0, -1).forEach((name, depth) => {
      path += `/${name}`;
      let folder = folders.get(path);
      if (!folder) {
        folder = { path, name, depth, entry: null, inside: 0 };
        folders.set(path, folder);
        if (!hidden) found.push(folder);
      }
      folder.inside += 1;
      hidden ||= folded.has(path);
    });
    if (!hidden) found.push({ path: entry.path, name: names.at(-1) ?? entry.path, depth: names.length - 1, entry, inside: 1 });
  }
  return found;
}
