// Two texts line by line: what goes, what comes, and a little of what stays around it.

export interface Line {
  kind: "same" | "gone" | "new" | "cut"; // `cut`: so many equal lines are not shown
  text: string;
}

const AROUND = 3;
const MOST_CELLS = 1_000_000; // beyond that a block is replaced as a whole: true, if not the shortest

export function diff(before: string, after: string): Line[] {
  if (before === after) return [];
  const old = lines(before);
  const now = lines(after);
  let head = 0;
  while (head < old.length && head < now.length && old[head] === now[head]) head += 1;
  let tail = 0;
  while (tail < old.length - head && tail < now.length - head && old.at(-1 - tail) === now.at(-1 - tail)) tail += 1;
  const same = (text: string): Line => ({ kind: "same", text });
  return shortened([
    ...old.slice(0, head).map(same),
    ...middle(old.slice(head, old.length - tail), now.slice(head, now.length - tail)),
    ...old.slice(old.length - tail).map(same),
  ]);
}

function lines(text: string): string[] {
  if (text === "") return [];
  return (text.endsWith("\n") ? text.slice(0, -1) : text).split("\n");
}

function middle(old: string[], now: string[]): Line[] {
  const gone = (text: string): Line => ({ kind: "gone", text });
  const come = (text: string): Line => ({ kind: "new", text });
  if (old.length * now.length > MOST_CELLS) return [...old.map(gone), ...now.map(come)];
  // longest[i][j]: how many lines the rests from i and j have in common, in order
  const longest = Array.from({ length: old.length + 1 }, () => new Uint32Array(now.length + 1));
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      longest[i]![j] = old[i] === now[j] ? longest[i + 1]![j + 1]! + 1 : Math.max(longest[i + 1]![j]!, longest[i]![j + 1]!);
    }
  }
  const found: Line[] = [];
  let i = 0;
  let j = 0;
  while (i < old.length && j < now.length) {
    if (old[i] === now[j]) {
      found.push({ kind: "same", text: old[i]! });
      i += 1;
      j += 1;
    } else if (longest[i + 1]![j]! >= longest[i]![j + 1]!) {
      found.push(gone(old[i]!));
      i += 1;
    } else {
      found.push(come(now[j]!));
      j += 1;
    }
  }
  return [...found, ...old.slice(i).map(gone), ...now.slice(j).map(come)];
}

function shortened(all: Line[]): Line[] {
  const near = all.map((_, at) => all.slice(Math.max(0, at - AROUND), at + AROUND + 1).some((one) => one.kind !== "same"));
  const shown: Line[] = [];
  let hidden = 0;
  const told = () => {
    if (hidden) shown.push({ kind: "cut", text: `${hidden} equal ${hidden === 1 ? "line" : "lines"}` });
    hidden = 0;
  };
  all.forEach((line, at) => {
    if (near[at]) {
      told();
      shown.push(line);
    } else {
      hidden += 1;
    }
  });
  told();
  return shown;
}
