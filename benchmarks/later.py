"""Add to the record what was measured in a later run.

A whole run takes half an hour. When only a part of the book has changed, that part can
be measured alone; the record then says what was measured when, and the page says so.
"""

import os
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

Record = dict[str, Any]

# What names a part, in each list of the record.
PARTS = {"rows": "group", "growth": "axis", "gemm_shares": "model"}


class OtherMachineError(RuntimeError):
    """The record comes from another machine or other versions."""


def merged(record: Record, found: dict[str, list[Record]], run: Record) -> Record:
    """Replace parts of a record by those of a later run, and keep the others.

    Args:
        record: The record so far.
        found: What the later run has measured, by list of the record.
        run: Its date, command, machine, versions and so on.

    Raises:
        OtherMachineError: If its machine or versions are not the record's, since its
            times could not stand beside the others.
    """
    for key in ("machine", "versions"):
        for name, value in run[key].items():
            # The number of threads may differ: the page states it.
            if name != "threads" and value != record[key].get(name):
                raise OtherMachineError(
                    f"{name} must be the record's, {record[key].get(name)}, got "
                    f"{value}."
                )
    record, parts = deepcopy(record), []
    for name, key in PARTS.items():
        new = list(dict.fromkeys(row[key] for row in found[name]))
        kept = [row for row in record[name] if row[key] not in new]
        record[name] = [*kept, *found[name]]
        parts += new
    earlier = record.get("later_runs", [])
    for one in earlier:
        one["parts"] = [part for part in one["parts"] if part not in parts]
    about = {"threads": run["machine"]["threads"], "parts": parts}
    about |= {k: v for k, v in run.items() if k not in ("machine", "versions")}
    record["later_runs"] = [one for one in [*earlier, about] if one["parts"]]
    return record


class Elsewhere:
    """How much of the processor other programs use, from now on."""

    def __init__(self) -> None:
        self.start = self._now()

    def share(self) -> float | None:
        """Return a share of all cores; `None` outside Linux."""
        if self.start is None or (end := self._now()) is None:
            return None
        passed, used = (b - a for a, b in zip(self.start, end, strict=True))
        return round(max(0.0, used / passed / (os.cpu_count() or 1)), 2)

    def _now(self) -> tuple[float, float] | None:
        stat = Path("/proc/stat")
        if not stat.exists():
            return None
        ticks = [int(x) for x in stat.read_text("utf-8").split("\n")[0].split()[1:]]
        user, nice, system, _, _, *interrupts = ticks[:7]
        busy = sum((user, nice, system, *interrupts)) / os.sysconf("SC_CLK_TCK")
        # Our own share includes processes that we have waited for.
        return time.perf_counter(), busy - sum(os.times()[:4])
