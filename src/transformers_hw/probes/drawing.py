"""Weights as text: packed for a page, or drawn as SVG."""

import base64
import html
import struct
import zlib
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

HEAT = "#c93e0e"


@dataclass(frozen=True)
class Axis:
    """The tokens of one side, and where they are in an image, if it is one."""

    labels: tuple[str, ...]
    lead: int = 0
    grid: tuple[int, int] | None = None
    size: tuple[int, int] | None = None
    image: str | None = None

    def default(self) -> int:
        """Return the token to begin with: the first, or the patch in the middle."""
        if self.grid is None or self.lead:
            return 0
        rows, columns = self.grid
        return rows // 2 * columns + columns // 2


def encode(maps: Tensor, bits: int) -> str:
    """Write a peak for each row, then each weight as a fraction of its row's peak."""
    top = 2**bits - 1
    peaks = maps.double().amax(dim=-1, keepdim=True)
    codes = (maps.double() / peaks.masked_fill(peaks == 0, 1.0) * top).round()
    codes = codes.to(torch.uint8 if bits == 8 else torch.uint16)
    return base64.b64encode(_bytes(peaks.float()) + _bytes(codes)).decode()


def _bytes(x: Tensor) -> bytearray:
    flat = x.contiguous().flatten().view(torch.uint8)
    buffer = bytearray(len(flat))
    torch.frombuffer(buffer, dtype=torch.uint8).copy_(flat)
    return buffer


def png(image: Tensor) -> bytes:
    """Write an image of bytes, `(height, width, channels)`, as PNG."""
    height, width, channels = image.shape
    lines = rearrange(image, "h w c -> h (w c)")
    filtered = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), lines], dim=1)
    color = 2 if channels == 3 else 0
    header = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    chunks = {
        b"IHDR": header,
        b"IDAT": zlib.compress(bytes(_bytes(filtered)), 9),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body))
        + kind
        + body
        + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks.items()
    )


def svg_over_image(title: str, keys: Axis, row: list[float]) -> str:
    """Draw the weights of one query over the patches of an image."""
    (rows, columns), (height, width) = keys.grid or (1, 1), keys.size or (1, 1)
    tall = round(16 * height * columns / (rows * width), 3)
    scale = max(row[keys.lead :]) or 1.0
    cells = []
    for k, weight in enumerate(row):
        patch = k - keys.lead
        if patch < 0:
            box, share = (20 * k, tall * rows + 4, 16, 16), weight
        else:
            i, j = divmod(patch, columns)
            box, share = (16 * j, round(tall * i, 3), 16, tall), weight / scale
        cells.append(_cell(box, k, weight, share, keys.labels[k]))
    under = (
        f'<image href="{keys.image}" width="{16 * columns}" '
        f'height="{tall * rows:g}" preserveAspectRatio="none"/>'
    )
    size = (16 * columns, tall * rows + (20 if keys.lead else 0))
    return _svg(size, title, under, cells)


def svg_matrix(title: str, queries: Axis, keys: Axis, rows: list[list[float]]) -> str:
    """Draw the weights of all queries over all keys, with their tokens."""
    margin = 90
    scale = max(map(max, rows)) or 1.0
    cells = [
        _cell(
            (margin + 18 * k, margin + 18 * q, 18, 18),
            k,
            weight,
            weight / scale,
            f"{queries.labels[q]} → {keys.labels[k]}",
        )
        for q, row in enumerate(rows)
        for k, weight in enumerate(row)
    ]
    words = [
        f'<text x="{margin - 6}" y="{margin + 18 * q + 13}">{html.escape(text)}</text>'
        for q, text in enumerate(queries.labels)
    ]
    words += [
        f'<text transform="translate({margin + 18 * k + 13} {margin - 6}) rotate(90)">'
        f"{html.escape(text)}</text>"
        for k, text in enumerate(keys.labels)
    ]
    group = '<g font-family="sans-serif" font-size="12" fill="#555" text-anchor="end">'
    size = (margin + 18 * len(keys.labels), margin + 18 * len(queries.labels))
    return _svg(size, title, f"{group}{''.join(words)}</g>", cells)


def _cell(
    box: tuple[int | float, ...], key: int, weight: float, share: float, label: str
) -> str:
    x, y, width, height = box
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
        f'fill-opacity="{0.85 * min(1.0, share):.3f}" data-key="{key}" '
        f'data-weight="{weight:.6g}">'
        f"<title>{html.escape(label)}: {weight:.3g}</title></rect>"
    )


def _svg(
    size: tuple[int | float, ...], title: str, other: str, cells: list[str]
) -> str:
    width, height = size
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="0 0 {width:g} {height:g}" role="img">'
        f"<title>{html.escape(title)}</title>{other}"
        f'<g fill="{HEAT}">{"".join(cells)}</g></svg>'
    )
