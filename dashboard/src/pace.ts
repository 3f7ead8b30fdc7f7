// How soon the kernel is asked again. Every question is an entry of its journal, so while changes keep coming each look
// waits twice as long as the one before, up to a limit; after a quiet while a change is looked at as soon as ever.

export class Pace {
  private pause: number;
  private last = -Infinity;

  constructor(
    private readonly first: number, // milliseconds between two looks
    private readonly longest: number,
  ) {
    this.pause = first;
  }

  /** A change has come: milliseconds until it is looked at. */
  wait(): number {
    const since = performance.now() - this.last;
    if (since > 2 * this.pause) this.pause = this.first;
    return Math.max(0, this.pause - since);
  }

  /** It is looked at now; a change that comes meanwhile does not come after a quiet while. */
  looking(): void {
    this.last = performance.now();
  }

  /** It was looked at, which took so long. */
  looked(took = 0): void {
    this.last = performance.now();
    this.pause = Math.min(this.longest, Math.max(2 * this.pause, 5 * took));
  }
}

const LATEST_MS = 60_000;

/** Ask every so often for what no event tells of; less and less often while the answer stays the same. */
export class Round {
  private timer: ReturnType<typeof setTimeout> | undefined;
  private pause: number;
  private before = "";

  constructor(
    private readonly every: number, // milliseconds
    private readonly ask: () => void,
  ) {
    this.pause = every;
    this.again();
  }

  /** What came, also for another reason. */
  heard(data: unknown): void {
    const now = JSON.stringify(data);
    this.pause = now === this.before ? Math.min(2 * this.pause, Math.max(this.every, LATEST_MS)) : this.every;
    this.before = now;
    this.again();
  }

  stop(): void {
    clearTimeout(this.timer);
  }

  private again(): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      if (!document.hidden) this.ask();
      this.again();
    }, this.pause);
  }
}
