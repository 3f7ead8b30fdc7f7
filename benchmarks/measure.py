"""How figures are taken: many samples, sorted; always beside a baseline of the same run."""

import json
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Series:
    """Samples of one thing in one unit."""

    name: str
    unit: str
    samples: list[float] = field(default_factory=list)

    @property
    def p50(self) -> float:
        return statistics.median(self.samples)

    @property
    def p95(self) -> float:
        return sorted(self.samples)[max(0, round(len(self.samples) * 0.95) - 1)]


class Report:
    """Collects series and ratios, prints them as they come, and writes them as JSON."""

    def __init__(self) -> None:
        self._series: list[Series] = []
        self._ratios: dict[str, float] = {}

    def add(self, series: Series) -> Series:
        self._series.append(series)
        line = f"  {series.name:<44} p50 {series.p50:9.2f} {series.unit}"
        print(line + (f"   p95 {series.p95:9.2f} {series.unit}" if len(series.samples) > 1 else ""), flush=True)
        return series

    def ratio(self, name: str, of: Series, to: Series) -> None:
        self._ratios[name] = of.p50 / to.p50
        print(f"  {name:<44} {self._ratios[name]:13.2f} ×", flush=True)

    def write(self, path: Path, mode: str, arguments: Sequence[str]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        facts = {
            "mode": mode,
            "machine": platform.machine(),
            "kernel": platform.release(),
            "python": sys.version.split()[0],
            "arguments": list(arguments),
            "ratios": self._ratios,
            "series": [
                {"name": s.name, "unit": s.unit, "n": len(s.samples), "p50": s.p50, "p95": s.p95} for s in self._series
            ],
        }
        path.write_text(json.dumps(facts, indent=2) + "\n")
