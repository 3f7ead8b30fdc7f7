// Tables. Long ones draw only the rows that are seen: a thousand agents cost as much as thirty.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

export interface Column<T> {
  title: string;
  cell: (row: T) => ComponentChildren;
  align?: "right";
  wide?: boolean; // takes what is left, and is cut
  spare?: boolean; // left out where there is little room
  whole?: boolean; // short words that stay in one line
}

interface TableProps<T> {
  label: string;
  columns: Column<T>[];
  rows: readonly T[];
  id: (row: T) => string | number;
  onOpen?: (row: T) => void; // Enter or click
  chosen?: string | number;
}

const ROW = 34;
const MANY = 80;
const AROUND = 10;

export function Table<T>({ label, columns, rows, id, onOpen, chosen }: TableProps<T>) {
  const box = useRef<HTMLDivElement>(null);
  const many = rows.length > MANY;
  const [from, to] = useSeen(box, rows.length, ROW, many);
  const open = (row: T) => (event: KeyboardEvent) => {
    if (event.key !== "Enter" || event.target !== event.currentTarget) return;
    event.preventDefault();
    onOpen?.(row);
  };
  const className = (column: Column<T>) =>
    [column.align, column.wide ? "wide" : "", column.spare ? "spare" : "", column.whole ? "whole" : ""].filter(Boolean).join(" ") || undefined;
  return (
    <div class={many ? "table-box many" : "table-box"} ref={box} tabIndex={many ? 0 : undefined} role={many ? "region" : undefined} aria-label={many ? label : undefined}>
      <table aria-label={label} aria-rowcount={rows.length + 1}>
        <thead>
          <tr aria-rowindex={1}>
            {columns.map((column) => (
              <th key={column.title} scope="col" class={className(column)}>{column.title}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {from > 0 ? <tr aria-hidden="true" class="gap"><td colSpan={columns.length} style={{ height: `${from * ROW}px` }} /></tr> : null}
          {rows.slice(from, to).map((row, index) => (
            <tr
              key={id(row)}
              aria-rowindex={from + index + 2}
              data-row
              tabIndex={-1}
              class={[onOpen ? "opens" : "", chosen === id(row) ? "chosen" : ""].filter(Boolean).join(" ") || undefined}
              onClick={onOpen ? () => onOpen(row) : undefined}
              onKeyDown={onOpen ? open(row) : undefined}
            >
              {columns.map((column) => (
                <td key={column.title} class={className(column)}>{column.cell(row)}</td>
              ))}
            </tr>
          ))}
          {to < rows.length ? <tr aria-hidden="true" class="gap"><td colSpan={columns.length} style={{ height: `${(rows.length - to) * ROW}px` }} /></tr> : null}
        </tbody>
      </table>
    </div>
  );
}

/** Which rows of a scrolled box are to be drawn. */
export function useSeen(box: { current: HTMLElement | null }, total: number, row: number, on: boolean): [number, number] {
  const [place, set] = useState({ top: 0, height: 900 });
  useEffect(() => {
    const element = box.current;
    if (!element || !on) return;
    let frame = 0;
    const look = () => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => set({ top: element.scrollTop, height: element.clientHeight }));
    };
    element.addEventListener("scroll", look, { passive: true });
    const sizes = new ResizeObserver(look);
    sizes.observe(element);
    return () => {
      cancelAnimationFrame(frame);
      element.removeEventListener("scroll", look);
      sizes.disconnect();
    };
  }, [on]);
  if (!on) return [0, total];
  const first = Math.max(0, Math.min(Math.floor(place.top / row) - AROUND, total));
  return [first, Math.min(total, first + Math.ceil(place.height / row) + 2 * AROUND)];
}
