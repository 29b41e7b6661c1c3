"""The page on speed: what it shows is what the benchmarks wrote down."""

import copy
import html
import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from small import ROOT, build, warnings

RECORD = "benchmarks/record.json"
SVG = "{http://www.w3.org/2000/svg}"
HOOKS = ("formulas", "answers", "speed")
PAGES = {
    "docs/index.md": "# Home",
    "docs/questions.toml": "source = {}\nquestion = []\n",
    "docs/speed.md": (ROOT / "docs/speed.md").read_text("utf-8"),
}


def row(group: str, what: str, ratio: float, **other: Any) -> dict[str, Any]:
    """Give a row; whatever is not said is the same in all."""
    usual = {
        "peer": "torch",
        "mode": "forward",
        "device": "cpu",
        "dtype": "float32",
        "lower_quartile": round(ratio * 0.97, 3),
        "upper_quartile": round(ratio * 1.02, 3),
        "our_milliseconds": 3.1,
        "their_milliseconds": 0.0321,
        "pairs": 31,
        "largest_difference": 1.2e-7,
        "our_megabytes": 12.34,
        "their_megabytes": 1400.4,
        "rate": None,
    }
    return {"group": group, "what": what, "ratio": ratio} | usual | other


MEASURED = {
    "date": "2026-11-05T05:15:16+00:00",
    "command": "python benchmarks/run.py",
    "seconds": 1234.5,
    "machine": {"system": "Linux", "processor": "A Chip", "cores": 2, "threads": 1},
    "versions": {"python": "3.11.7", "torch": "2.15.0"},
    "gemm_gigaflops": {"float32": 186.3},
    "gemm_shares": [{"what": "ViT-B/16", "share": 0.714, "gigaflops": 133.0}],
    "noise": [0.991, 1.012, 1.0],
    "rows": [
        row("Layers", "N 64 | causal", 0.5),
        row("Layers", "N 64 | causal", 0.9996, peer="timm", upper_quartile=1.3),
        row("Layers", "N 65", 2.0, mode="training step", dtype="bfloat16", pairs=7),
        row(
            "Data",
            "`crops`",
            13.52,
            largest_difference=None,
            our_megabytes=None,
            their_megabytes=None,
            rate={"unit": "pictures/s", "ours": 4321.9, "theirs": 319.6},
        ),
        row("Data", "flips", 1.0, largest_difference=0.0),
    ],
    "growth": [
        {
            "what": "Encoder",
            "axis": "depth",
            "values": [1, 2, 4, 8],
            "milliseconds": [3.0, 12.0, 48.0, 192.0],
            "megabytes": [5.0, 10.0, 20.0, 40.0],
            "time_exponent": 2.0,
            "memory_exponent": 1.0,
        },
        {
            "what": "Decoder",
            "axis": "depth",
            "values": [1, 3],
            "milliseconds": [2.0, 6.0],
            "megabytes": None,
            "time_exponent": 1.0,
            "memory_exponent": None,
        },
    ],
    "left_out": [
        {"what": "one projection", "gain": 1.034, "why": "Three can be read."}
    ],
}


def changed(path: str, value: Any) -> str:
    """Give the record with another value at a path."""
    record = copy.deepcopy(MEASURED)
    *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    place: Any = record
    for key in way:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return json.dumps(record)


def text_of(markup: str) -> str:
    """Give what a reader sees."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", markup)).split())


def tables(page: str, heading: str) -> list[list[str]]:
    """Give the cells of the first table below a heading, by line."""
    _, _, below = page.partition(f">{heading}</h")
    table = re.search(r"<table>.*?</table>", below, re.S)
    assert table is not None
    lines = re.findall(r"<tr>(.*?)</tr>", table[0], re.S)
    return [
        [text_of(cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", line, re.S)]
        for line in lines
    ]


def pictures(page: str) -> dict[str, str]:
    """Give the alt text of each picture, by its address."""
    return {
        found["src"]: html.unescape(found["alt"])
        for tag in re.findall(r"<img [^>]*>", page)
        for found in [dict(re.findall(r'(\w+)="([^"]*)"', tag))]
    }


def part(drawing: Path, name: str) -> ElementTree.Element:
    """Give the part of a drawing that has a name."""
    found = ElementTree.parse(drawing).find(f".//*[@id='{name}']")
    assert found is not None, name
    return found


def marks(drawing: Path, name: str) -> list[tuple[float, float]]:
    """Give where a drawing has the markers of a name."""
    uses = part(drawing, name).iter(f"{SVG}use")
    return [(float(use.attrib["x"]), float(use.attrib["y"])) for use in uses]


@pytest.fixture(scope="module")
def small_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a site of the page alone, with a record of a few rows."""
    folder = tmp_path_factory.mktemp("speed")
    built = build(folder, PAGES | {RECORD: json.dumps(MEASURED)}, hooks=HOOKS)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def speed(small_site: Path) -> str:
    return (small_site / "site/speed/index.html").read_text("utf-8")


def test_tables_hold_what_was_measured(speed: str) -> None:
    layers = tables(speed, "Layers")
    head = ["What", "Ratio (quartiles)", "Against", "Mode", "ms, ours / theirs"]
    assert layers == [
        [*head, "MB, ours / theirs", "Largest difference"],
        [
            *("N 64 | causal", "0.500 (0.485–0.510)", "torch", "forward"),
            *("3.10 / 0.0321", "12.3 / 1,400", "1.2 × 10⁻⁷"),
        ],
        [
            *("N 64 | causal", "0.999 (0.970–1.30)", "timm", "forward"),
            *("3.10 / 0.0321", "12.3 / 1,400", "1.2 × 10⁻⁷"),
        ],
        [
            *("N 65", "2.00 (1.94–2.04)", "torch", "training step, bfloat16"),
            *("3.10 / 0.0321", "12.3 / 1,400", "1.2 × 10⁻⁷"),
        ],
    ]
    data = tables(speed, "Data")
    assert data[0][4:] == [
        *("ms, ours / theirs", "MB, ours / theirs", "Rate, ours / theirs"),
        "Largest difference",
    ]
    assert data[1][1] == "13.5 (13.1–13.8)"
    assert data[1][5:] == ["–", "4,322 / 320 pictures/s", "–"]
    assert data[2][5:] == ["12.3 / 1,400", "–", "0"]


def test_rows_below_1_are_counted_and_listed(speed: str) -> None:
    text = text_of(speed)
    assert "3 of 5 rows are at or above 1.00. The lowest is 0.500: Layers, N 64" in text
    assert "2 rows of 5 are below 1.00; in 1 of them, so is the upper quartile." in text
    assert "1 is no lower than a layer timed against itself." in text
    below = tables(speed, "Where ours is slower")
    assert [line[1].split()[0] for line in below[1:]] == ["0.500", "0.999"]
    assert below[1][0] == "Layers: N 64 | causal"


def test_the_page_says_where_and_how_it_was_measured(speed: str) -> None:
    text = text_of(speed)
    assert "Every row was measured on the CPU." in text
    assert "No run on a CUDA device has been made." in text
    assert "Measured on 5 November 2026 by python benchmarks/run.py in 21 min" in text
    assert "7 to 31 pairs of turns a row" in text
    assert "A Chip, Linux, 2 cores, 1 thread; python 3.11.7, torch 2.15.0" in text
    assert 'href="../figures/speed/record.json"' in speed


def test_growth_shares_and_what_was_left_out_are_told(speed: str) -> None:
    assert tables(speed, "How time and memory grow")[1:] == [
        ["Encoder", "depth", "1 to 8", "2.00", "1.00"],
        ["Decoder", "depth", "1 to 3", "1.00", "–"],
    ]
    assert "on the machine: 186 in float32." in text_of(speed)
    shares = tables(speed, "How near to the machine's rate")
    assert shares[1:] == [["ViT-B/16", "133", "71%"]]
    left_out = tables(speed, "What was left out, and what it would have gained")
    assert left_out[1:] == [["one projection", "1.03", "Three can be read."]]


def test_every_panel_has_an_alt_text_that_says_what_is_seen(speed: str) -> None:
    seen = pictures(speed)
    stems = ["ratios-1", "ratios-2", "growth-1-time", "growth-1-memory"]
    assert list(seen) == [
        f"../figures/speed/{stem}-{mode}.svg#only-{mode}"
        for stem in stems
        for mode in ("light", "dark")
    ]
    layers, same, data, _, time, _, memory, _ = seen.values()
    assert layers == same
    assert "1 of 3 rows is at or above 1.00" in layers
    assert "lowest is 0.500 (N 64 | causal, forward, against torch)" in layers
    assert "highest 2.00 (N 65, training step, bfloat16, against torch)" in layers
    assert "All 2 rows are at or above 1.00" in data
    assert "highest 13.5 (crops, forward" in data
    assert "Encoder from 3.00 ms at 1 to 192 ms at 8, fitted by the power 2.00" in time
    assert "Decoder" in time
    assert "Decoder" not in memory


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_the_drawing_has_a_mark_for_every_row_where_its_ratio_is(
    small_site: Path, mode: str
) -> None:
    for place, group in enumerate(["Layers", "Data"], start=1):
        rows = [one for one in MEASURED["rows"] if one["group"] == group]
        drawing = small_site / f"site/figures/speed/ratios-{place}-{mode}.svg"
        drawn = re.findall(r'<g id="ratio-\d+">', drawing.read_text("utf-8"))
        assert len(drawn) == len(rows)
        at = [marks(drawing, f"ratio-{number}") for number in range(len(rows))]
        assert all(len(found) == 1 for found in at)
        assert [y for [(_, y)] in at] == sorted({y for [(_, y)] in at})
        if group == "Layers":
            left, middle, right = (x for [(x, _)] in at)
            # A half, almost one and double: the axis is logarithmic.
            assert math.isclose(middle - left, right - middle, rel_tol=2e-3)
            assert right - left > 50


def test_peers_are_told_apart_by_marker_and_by_colour(small_site: Path) -> None:
    drawing = small_site / "site/figures/speed/ratios-1-light.svg"
    torch, timm, torch_again = (
        next(part(drawing, f"ratio-{number}").iter(f"{SVG}use")).attrib
        for number in range(3)
    )
    marker = "{http://www.w3.org/1999/xlink}href"
    fills = [re.findall(r"fill: (#\w+)", one["style"]) for one in (torch, timm)]
    assert fills[0] != fills[1]
    assert torch[marker] != timm[marker]
    assert (torch[marker], torch["style"]) == (
        torch_again[marker],
        torch_again["style"],
    )


def test_lines_of_growth_are_drawn_with_the_powers_of_the_record(
    small_site: Path,
) -> None:
    drawing = small_site / "site/figures/speed/growth-1-time-light.svg"
    for number, points in enumerate([4, 2]):
        dots = marks(drawing, f"growth-{number}")
        line = part(drawing, f"fit-{number}")[0].attrib["d"]
        corners = [float(length) for length in re.findall(r"[\d.]+", line)]
        # These points lie on their line; it may leave out those between its ends.
        ends = [*dots[0], *dots[-1]]
        assert len(dots) == points
        assert corners[:2] + corners[-2:] == pytest.approx(ends, abs=1e-3)


def test_figures_are_drawn_once(small_site: Path) -> None:
    def kept() -> dict[str, int]:
        paths = sorted((small_site / ".cache/speed").glob("*/*.svg"))
        return {str(path): path.stat().st_mtime_ns for path in paths}

    before = kept()
    built = build(small_site, {}, hooks=HOOKS)
    assert built.returncode == 0, built.stderr
    assert len(before) == 8
    assert kept() == before


def test_a_record_of_one_row_on_cuda_leaves_out_what_it_does_not_hold(
    tmp_path: Path,
) -> None:
    record = MEASURED | {
        "rows": [row("Layers", "N 64", 1.5, device="cuda")],
        **{key: [] for key in ("gemm_shares", "growth", "left_out")},
    }
    built = build(tmp_path, PAGES | {RECORD: json.dumps(record)}, hooks=HOOKS)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "site/speed/index.html").read_text("utf-8")
    text = text_of(page)
    assert "The one row is at or above 1.00." in text
    assert "Every row was measured on a CUDA device." in text
    assert "No run on a CUDA device" not in text
    assert "No row is below 1.00." in text
    assert tables(page, "Layers")[1][3] == "forward, cuda"
    assert "What was left out" not in text
    assert "memory grow" not in text
    assert len(pictures(page)) == 2


def test_without_a_record_the_page_says_that_nothing_was_measured(
    tmp_path: Path,
) -> None:
    built = build(tmp_path, PAGES, hooks=HOOKS)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "site/speed/index.html").read_text("utf-8")
    assert text_of(page).count("Nothing has been measured yet") == 1
    assert "<table" not in page
    assert "<img" not in page
    assert "[[" not in page
    assert not (tmp_path / "site/figures/speed").exists()


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        ("{", "is not JSON: Expecting property name"),
        ("[]", "an object is wanted, not []"),
        (changed("rows", []), "rows: at least one is wanted"),
        (changed("noise", []), "noise: a list of one ratio or more is wanted"),
        (changed("noise", [1.0, 0]), "noise: a list of one ratio or more is wanted"),
        (
            changed("rows.1.ratio", ...),
            "rows[1].ratio is missing; above zero is wanted",
        ),
        (changed("rows.2.ratio", "2"), 'rows[2].ratio: above zero is wanted, not "2"'),
        (changed("rows.0.ratio", math.nan), "rows[0].ratio: above zero is wanted"),
        (changed("rows.0.ratio", 0.6), "between its quartiles, 0.485 and 0.51, is"),
        (changed("rows.3.rate.ours", 0), "rows[3].rate.ours: above zero is wanted"),
        (changed("growth.0.megabytes", [1.0]), "as many as there are values (4)"),
        (changed("growth.1.megabytes", [1, 2]), "both or neither"),
        (changed("machine.cores", 2.5), "machine.cores: a count is wanted, not 2.5"),
        (changed("date", "today"), 'date: a date in ISO 8601 is wanted, not "today"'),
    ],
)
def test_a_malformed_record_stops_the_build(
    tmp_path: Path, record: str, complaint: str
) -> None:
    built = build(tmp_path, PAGES | {RECORD: record}, hooks=HOOKS)
    assert built.returncode != 0
    assert f"{RECORD}" in built.stderr
    assert complaint in built.stderr
    assert "Traceback" not in built.stderr


def test_an_unknown_part_stops_the_build(tmp_path: Path) -> None:
    pages = PAGES | {"docs/speed.md": "# Speed\n\n[[speed limits]]\n"}
    built = build(tmp_path, pages, hooks=HOOKS)
    assert built.returncode != 0
    assert "[[speed ...]] is one of summary, ratios" in " ".join(warnings(built))


def test_no_measured_number_is_typed_into_the_page() -> None:
    page = re.sub(r"```.*?```", "", PAGES["docs/speed.md"], flags=re.S)
    numbers = set(re.findall(r"\d[\d.,]*\d|\d", page))
    # Equal speed, a quadratic, and a kind of numbers.
    assert numbers == {"1", "2", "32"}


def test_the_sites_own_page_shows_the_record_of_the_checkout(folder: Path) -> None:
    text = text_of((folder / "speed/index.html").read_text("utf-8"))
    path = ROOT / RECORD
    if not path.is_file():
        assert "Nothing has been measured yet" in text
        return
    rows = json.loads(path.read_text("utf-8"))["rows"]
    below = sum(one["ratio"] < 1 for one in rows)
    drawn = list((folder / "figures/speed").glob("ratios-*-light.svg"))
    assert len(drawn) == len({one["group"] for one in rows})
    assert (f"of {len(rows)} are below 1.00" in text) == (below > 0)
