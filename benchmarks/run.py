"""`make bench`: every benchmark of this folder in one process run, ratios first. Figures go to `.cache/bench.json`."""

import asyncio
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import spawn  # noqa: E402 (the path is set above)
from benchmarks.measure import Report  # noqa: E402

BENCHMARKS = {"spawn": spawn.run}


def main() -> int:
    chosen = sys.argv[1:] or list(BENCHMARKS)
    if unknown := [name for name in chosen if name not in BENCHMARKS]:
        print(f"there is no benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    mode = "root" if os.geteuid() == 0 else "user"
    report = Report()
    for name in chosen:
        print(f"{name} ({mode} mode)", flush=True)
        asyncio.run(BENCHMARKS[name](report))
    target = Path(os.environ.get("AGENT_OS_BENCH", ROOT / ".cache" / "bench.json"))
    report.write(target, mode, chosen)
    print(f"written to {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
