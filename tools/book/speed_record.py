"""What the benchmarks wrote down: read, checked, and put into words."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

RECORD = "benchmarks/record.json"

Kind = tuple[str, Callable[[Any], bool]]


def _is_number(value: Any) -> bool:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return real and math.isfinite(value)


def _is_date(value: Any) -> bool:
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return True


def _or_null(kind: Kind) -> Kind:
    wanted, fits = kind
    return f"{wanted} or null", lambda value: value is None or fits(value)


def _each(kind: Kind) -> Kind:
    wanted, fits = kind
    return (
        f"a list, of which each is {wanted}",
        lambda value: isinstance(value, list) and all(map(fits, value)),
    )


TEXT: Kind = ("a text", lambda value: isinstance(value, str) and value.strip() != "")
COUNT: Kind = ("a count", lambda value: type(value) is int and value > 0)
NUMBER: Kind = ("a number", _is_number)
AMOUNT: Kind = ("zero or more", lambda value: _is_number(value) and value >= 0)
POSITIVE: Kind = ("above zero", lambda value: _is_number(value) and value > 0)
TABLE: Kind = ("an object", lambda value: isinstance(value, dict))
TABLES: Kind = _each(TABLE)

WHOLE = {
    "date": ("a date in ISO 8601", _is_date),
    "command": TEXT,
    "seconds": POSITIVE,
    "machine": TABLE,
    "versions": TABLE,
    "gemm_gigaflops": TABLE,
    "gemm_shares": TABLES,
    "noise": (
        "a list of one ratio or more",
        lambda value: (
            isinstance(value, list)
            and len(value) > 0
            and all(_is_number(one) and one > 0 for one in value)
        ),
    ),
    "rows": TABLES,
    "growth": TABLES,
    "left_out": TABLES,
}
MACHINE = {"system": TEXT, "processor": TEXT, "cores": COUNT, "threads": COUNT}
ROW = {
    **dict.fromkeys(("group", "what", "peer", "mode", "device", "dtype"), TEXT),
    **dict.fromkeys(("ratio", "lower_quartile", "upper_quartile"), POSITIVE),
    **dict.fromkeys(("our_milliseconds", "their_milliseconds"), POSITIVE),
    "pairs": COUNT,
    "largest_difference": _or_null(AMOUNT),
    "our_megabytes": _or_null(AMOUNT),
    "their_megabytes": _or_null(AMOUNT),
    "rate": _or_null(TABLE),
}
RATE = {"unit": TEXT, "ours": POSITIVE, "theirs": POSITIVE}
GROWTH = {
    "what": TEXT,
    "axis": TEXT,
    **dict.fromkeys(("values", "milliseconds"), _each(POSITIVE)),
    "megabytes": _or_null(_each(POSITIVE)),
    "time_exponent": NUMBER,
    "memory_exponent": _or_null(NUMBER),
}
SHARE = {"what": TEXT, "share": POSITIVE, "gigaflops": POSITIVE}
LEFT_OUT = {"what": TEXT, "gain": POSITIVE, "why": TEXT}


@dataclass(frozen=True)
class Row:
    """One comparison; the ratio is the peer's time divided by ours."""

    group: str
    what: str
    peer: str
    mode: str
    device: str
    dtype: str
    ratio: float
    lower_quartile: float
    upper_quartile: float
    our_milliseconds: float
    their_milliseconds: float
    pairs: int
    largest_difference: float | None
    our_megabytes: float | None
    their_megabytes: float | None
    rate: dict[str, Any] | None

    @property
    def setting(self) -> str:
        """The mode; the device and the type of numbers where they are not usual."""
        unusual = {self.device: "cpu", self.dtype: "float32"}
        return ", ".join(
            [self.mode, *(is_ for is_, usual in unusual.items() if is_ != usual)]
        )


@dataclass(frozen=True)
class Growth:
    """Times and memory of one piece of work as one of its sizes grows."""

    what: str
    axis: str
    values: list[float]
    milliseconds: list[float]
    megabytes: list[float] | None
    time_exponent: float
    memory_exponent: float | None


@dataclass(frozen=True)
class Share:
    """How near a model comes to the machine's rate of multiplying matrices."""

    what: str
    share: float
    gigaflops: float


@dataclass(frozen=True)
class LeftOut:
    """A way to be faster that was not taken, and what it was measured to gain."""

    what: str
    gain: float
    why: str


@dataclass(frozen=True)
class Record:
    """Everything that one run of the benchmarks measured."""

    date: str
    command: str
    seconds: float
    machine: dict[str, Any]
    versions: dict[str, str]
    gemm_gigaflops: dict[str, float]
    gemm_shares: list[Share]
    noise: list[float]
    rows: list[Row]
    growth: list[Growth]
    left_out: list[LeftOut]

    @property
    def groups(self) -> dict[str, list[Row]]:
        """The rows of each group, in the order of the record."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.group, []).append(row)
        return found

    @property
    def axes(self) -> dict[str, list[Growth]]:
        """What was measured along each axis, in the order of the record."""
        found: dict[str, list[Growth]] = {}
        for growth in self.growth:
            found.setdefault(growth.axis, []).append(growth)
        return found


def read(root: Path) -> Record | None:
    """Give the record of a checkout, or nothing if nothing has been measured.

    Raises:
        ValueError: It is not as it should be; the message says where.
    """
    path = root / RECORD
    return parse(path.read_text("utf-8")) if path.is_file() else None


def parse(text: str) -> Record:
    """Read a record, and see that it holds what the page needs.

    Raises:
        ValueError: It does not; the message says what was wanted where, and what came.
    """
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{RECORD} is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise ValueError(f"{RECORD}: an object is wanted, not {_shown(given)}")
    whole = _checked(given, WHOLE, "")
    _checked(given["machine"], MACHINE, "machine")
    for key, kind in (("versions", TEXT), ("gemm_gigaflops", POSITIVE)):
        _checked(given[key], dict.fromkeys(given[key], kind), key)
    if not given["rows"]:
        raise ValueError(f"{RECORD}: rows: at least one is wanted, not an empty list")
    return Record(
        **whole
        | {
            "rows": [Row(**_row(*one)) for one in _places(given, "rows")],
            "growth": [Growth(**_growth(*one)) for one in _places(given, "growth")],
            "gemm_shares": [
                Share(**_checked(entry, SHARE, where))
                for entry, where in _places(given, "gemm_shares")
            ],
            "left_out": [
                LeftOut(**_checked(entry, LEFT_OUT, where))
                for entry, where in _places(given, "left_out")
            ],
        }
    )


def _places(given: Mapping[str, Any], key: str) -> Iterable[tuple[Any, str]]:
    return [(entry, f"{key}[{place}]") for place, entry in enumerate(given[key])]


def _checked(entry: Any, kinds: Mapping[str, Kind], where: str) -> dict[str, Any]:
    for key, (wanted, fits) in kinds.items():
        place = f"{RECORD}: {where}.{key}" if where else f"{RECORD}: {key}"
        if key not in entry:
            raise ValueError(f"{place} is missing; {wanted} is wanted")
        if not fits(entry[key]):
            raise ValueError(f"{place}: {wanted} is wanted, not {_shown(entry[key])}")
    return {key: entry[key] for key in kinds}


def _row(entry: Any, where: str) -> dict[str, Any]:
    row = _checked(entry, ROW, where)
    if row["rate"] is not None:
        _checked(row["rate"], RATE, f"{where}.rate")
    low, middle, high = row["lower_quartile"], row["ratio"], row["upper_quartile"]
    if not low <= middle <= high:
        raise ValueError(
            f"{RECORD}: {where}.ratio: a number between its quartiles, {low} and "
            f"{high}, is wanted, not {middle}"
        )
    return row


def _growth(entry: Any, where: str) -> dict[str, Any]:
    growth = _checked(entry, GROWTH, where)
    if len(growth["values"]) < 2:
        raise ValueError(f"{RECORD}: {where}.values: two or more are wanted")
    for key in ("milliseconds", "megabytes"):
        found = growth[key]
        if found is not None and len(found) != len(growth["values"]):
            raise ValueError(
                f"{RECORD}: {where}.{key}: as many as there are values "
                f"({len(growth['values'])}) are wanted, not {len(found)}"
            )
    if (growth["megabytes"] is None) != (growth["memory_exponent"] is None):
        raise ValueError(
            f"{RECORD}: {where}: megabytes and memory_exponent are wanted both "
            "or neither"
        )
    return growth


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def ratio(value: float) -> str:
    """Write a ratio; one below 1 is never rounded up to it."""
    if value < 1:
        return f"{min(value, 0.999):.3f}"
    return three(value)


def three(value: float) -> str:
    """Write a number with three digits that count, and a large one in full."""
    if value == 0:
        return "0"
    after = 2 - math.floor(math.log10(value) + 1e-12)
    return f"{value:,.{max(after, 0)}f}" if after <= 4 else f"{value:.2g}"


def plain(text: str) -> str:
    """Give a text without what only Markdown needs."""
    return text.replace("`", "")


def counted(rows: list[Row]) -> str:
    """Say how many rows are at or above 1."""
    reached = sum(row.ratio >= 1 for row in rows)
    if len(rows) == 1:
        return f"The one row is {'at or above' if reached else 'below'} 1.00"
    if reached in (0, len(rows)):
        return (
            f"{'All' if reached else 'None of'} {len(rows)} rows are at or above 1.00"
        )
    verb = "is" if reached == 1 else "are"
    return f"{reached} of {len(rows)} rows {verb} at or above 1.00"


def named(row: Row) -> str:
    """Name a row within its group."""
    return f"{row.what}, {row.setting}, against {row.peer}"


def seen_of_ratios(group: str, rows: list[Row]) -> str:
    """Say what the panel of a group shows to those who cannot see it."""
    lowest, highest = (choose(rows, key=lambda row: row.ratio) for choose in (min, max))
    extremes = f"the ratio is {ratio(lowest.ratio)} ({named(lowest)})"
    if len(rows) > 1:
        extremes = (
            f"the lowest is {ratio(lowest.ratio)} ({named(lowest)}), "
            f"the highest {ratio(highest.ratio)} ({named(highest)})"
        )
    return plain(
        f"{group}: a dot for the ratio of the peer's time to ours in each row, a bar "
        f"for its quartiles, and a line at 1. {counted(rows)}; {extremes}."
    )


def series_of(
    growths: list[Growth], quantity: str
) -> list[tuple[Growth, list[float], float]]:
    """Give what was measured of time or memory: the work, values, exponent."""
    if quantity == "time":
        return [(one, one.milliseconds, one.time_exponent) for one in growths]
    return [
        (one, one.megabytes, one.memory_exponent)
        for one in growths
        if one.megabytes is not None and one.memory_exponent is not None
    ]


def seen_of_growth(axis: str, growths: list[Growth], quantity: str) -> str:
    """Say what a plot of growth shows to those who cannot see it."""
    unit = {"time": "ms", "memory": "MB"}[quantity]
    told = [
        f"{one.what} from {three(values[0])} {unit} at {one.values[0]:,g} to "
        f"{three(values[-1])} {unit} at {one.values[-1]:,g}, fitted by the power "
        f"{exponent:.2f}"
        for one, values, exponent in series_of(growths, quantity)
    ]
    return plain(
        f"{quantity.capitalize()} against {axis}, both on logarithmic axes, with "
        f"fitted lines: {'; '.join(told)}."
    )
