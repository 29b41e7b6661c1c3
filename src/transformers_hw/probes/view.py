"""Attention weights over an image or over tokens, in one HTML file."""

import base64
import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import torch
from einops import rearrange, reduce
from torch import Tensor

from transformers_hw._engine.arguments import describe, height_and_width
from transformers_hw._engine.files import atomic_write
from transformers_hw._engine.kernels import widen
from transformers_hw._engine.shapes import checked
from transformers_hw.probes.drawing import (
    Axis,
    encode,
    png,
    svg_matrix,
    svg_over_image,
)
from transformers_hw.probes.measures import (
    attention_distance,
    attention_rollout,
    one_per_layer,
)

# Weights of one file in base64, at most; and how many weights get two bytes each.
LIMIT = 32_000_000
FINE = 1_000_000
# Class tokens, registers: at most so many stand before the patches, if we may guess.
LEADING = 16
# A still picture for readers without scripts has at most so many cells.
STILL = 1_024


@dataclass(frozen=True)
class _Layer:
    """The maps of one layer by name, each `(q, k)`, and their distances in pixels."""

    name: str
    names: tuple[str, ...]
    maps: Tensor
    distances: tuple[float, ...] | None


@dataclass(frozen=True, repr=False, eq=False)
class AttentionView:
    """Attention weights, ready to be displayed, saved as HTML, or drawn as SVG.

    [`show`][transformers_hw.probes.show] makes it. A notebook displays it when it is
    the last line of a cell.

    Attributes:
        title: The heading of the page.
        bits: Number of bits of a weight in the page, 8 or 16. Each weight is off by at
            most $1/510$ or $1/131070$ of the largest weight of its query.
    """

    title: str
    bits: int
    _layers: tuple[_Layer, ...]
    _queries: Axis
    _keys: Axis

    def __repr__(self) -> str:
        q, k = len(self._queries.labels), len(self._keys.labels)
        return f"AttentionView({len(self._layers)} layers, {q} queries, {k} keys)"

    def _repr_html_(self) -> str:
        page = html.escape(self.html())
        return (
            f'<iframe srcdoc="{page}" title="{html.escape(self.title)}" '
            'sandbox="allow-scripts allow-downloads" loading="lazy" '
            'style="width: 100%; height: 46rem; border: 0"></iframe>'
        )

    def html(self) -> str:
        """Return the page: one file, which needs no network and no server."""
        folder = files("transformers_hw.probes")
        parts = {
            "style": (folder / "view.css").read_text("utf-8"),
            "script": (folder / "view.mjs").read_text("utf-8"),
            "title": html.escape(self.title),
            "still": self._still(),
            "kept": self._kept(),
            "data": json.dumps(self._data()).replace("<", r"\u003c"),
            "layers": "\n".join(
                f'<script type="text/plain" id="layer-{i}">{encoded}</script>'
                for i, encoded in enumerate(self._encoded())
            ),
        }
        pieces = (folder / "view.html").read_text("utf-8").split("{{")
        page = [pieces[0]]
        for piece in pieces[1:]:
            name, _, rest = piece.partition("}}")
            page += [parts[name], rest]
        return "".join(page)

    def save(self, path: str | Path) -> Path:
        """Write the page to a file, whole or not at all, and return its path."""
        path = Path(path)
        with atomic_write(path) as temporary:
            temporary.write_text(self.html(), "utf-8")
        return path

    @checked
    def svg(
        self,
        *,
        layer: int = -1,
        head: int | Literal["mean", "rollout"] = "mean",
        query: int | None = None,
    ) -> str:
        """Draw one map as SVG text, with the exact weights.

        Each cell has its weight in `data-weight`, rounded to six digits, and in words
        in its `<title>`. If the keys are patches, the map is that of one query, over
        the image, and tokens before the patches are squares below it. If they are
        tokens, it is the matrix of all queries and keys.

        Args:
            layer: Index of the layer among those shown.
            head: Index of the head in the model, `"mean"` over all heads, or
                `"rollout"`.
            query: Index of the query; by default the first token, or the patch in the
                middle if there is no token before the patches.

        Raises:
            ValueError: If there is no such layer, head or query.
        """
        layer = _index("layer", layer, len(self._layers))
        one = self._layers[layer]
        name = f"head {head}" if isinstance(head, int) else head
        if name not in one.names:
            raise ValueError(f"head must be one of {one.names}, got {head!r}.")
        default = self._queries.default() if query is None else query
        query = _index("query", default, len(self._queries.labels))
        rows = one.maps[one.names.index(name)].tolist()
        title = f"{one.name}, {name}"
        if self._keys.grid is not None:
            title += f", query {self._queries.labels[query]}"
            return svg_over_image(title, self._keys, rows[query])
        return svg_matrix(title, self._queries, self._keys, rows)

    def _data(self) -> dict[str, Any]:
        return {
            "bits": self.bits,
            "query": self._queries.default(),
            "queries": vars(self._queries),
            "keys": None if self._keys is self._queries else vars(self._keys),
            "layers": [
                {
                    "name": layer.name,
                    "maps": [
                        {
                            "name": name,
                            "distance": layer.distances and f"{layer.distances[i]:.1f}",
                        }
                        for i, name in enumerate(layer.names)
                    ],
                }
                for layer in self._layers
            ],
        }

    def _encoded(self) -> list[str]:
        return [encode(layer.maps, self.bits) for layer in self._layers]

    def _still(self) -> str:
        cells = len(self._keys.labels)
        if self._keys.grid is None:
            cells *= len(self._queries.labels)
        return self.svg() if cells <= STILL else ""

    def _kept(self) -> str:
        share = 2 * (2**self.bits - 1)
        text = (
            f"Each weight is kept in {self.bits} bits, to within 1/{share:,} of the "
            "largest weight of its query. Layers, heads, rows and columns are counted "
            "from 0."
        )
        if any(layer.distances for layer in self._layers):
            text += (
                " Numbers of pixels are attention distances, averaged over all patches."
            )
        return text


@checked
def show(
    weights: Mapping[str, Sequence[Tensor]] | Sequence[Tensor],
    inputs: Tensor | Sequence[str],
    context: Tensor | Sequence[str] | None = None,
    *,
    sample: int = 0,
    layers: str | Sequence[int | str] | None = None,
    heads: Sequence[int] | None = None,
    grid: tuple[int, int] | None = None,
    class_token: bool = True,
    bits: Literal[8, 16] | None = None,
    title: str = "Attention",
) -> AttentionView:
    r"""Show attention weights over the image or the tokens that they belong to.

    The result is a page in one file, which a notebook displays. Choose a layer, and
    point at a patch or a token: all heads show what it attends to, next to their mean
    and to the [rollout][transformers_hw.probes.attention_rollout] from the input up to
    this layer. Each head over an image comes with its
    [attention distance][transformers_hw.probes.attention_distance] in pixels. A click
    keeps the query, so that you can point at the keys and read their weights. Arrow
    keys and touch work as well.

    Args:
        weights: What [`capture_weights`][transformers_hw.probes.capture_weights]
            recorded in one call of a model; or the weights of each layer,
            `(b, heads, q, k)`, such as the `attentions` of a Hugging Face model.
        inputs: Where the queries come from: an image, `(channels, height, width)` with
            one or three channels, or `(height, width)`, or a batch
            `(b, channels, height, width)`; or a list of tokens. An image of bytes or of
            numbers from 0 to 1 is shown as it is; any other is stretched to that range.
        context: Where the keys come from in cross-attention; `inputs` by default.
        sample: Index in the batch.
        layers: Layers to show: their indices or names, or a text that their names
            contain; all by default. Rollout follows all that are given, and is
            left out where lengths differ between them.
        heads: Indices of the heads to show; all by default. The mean is over all.
        grid: `(rows, columns)` of patches. By default the grid of square patches that
            leaves the fewest tokens before them.
        class_token: Whether the first of the tokens before the patches, if there are
            any, is a class token. The others are called registers.
        bits: Bits of a weight in the page. Each weight is off by at most $1/510$ of the
            largest one of its query with 8 bits, and $1/131070$ with 16. By default 16
            up to a million weights, and 8 above.
        title: The heading of the page.

    Returns:
        A view, which `save` writes as an HTML file and `svg` draws map by map. With 8
        bits, a page for ViT-B/16 (12 layers, 12 heads, 197 tokens) takes 9 MB.

    Raises:
        TypeError: If weights are not floating-point tensors, or inputs are neither a
            tensor nor texts.
        ValueError: If shapes do not fit, batch sizes differ (as those of windows do), a
            layer was called more than once, nothing is left to show, or the page would
            exceed 32 MB.

    Examples:
        >>> from transformers_hw import VisionTransformer
        >>> from transformers_hw.probes import capture_weights
        >>> sizes = {"num_classes": 10, "dim": 12, "depth": 2, "heads": 3}
        >>> model, images = VisionTransformer(32, 4, **sizes), torch.rand(5, 3, 32, 32)
        >>> with torch.no_grad(), capture_weights(model) as weights:
        ...     logits = model(images)
        >>> view = show(weights, images, sample=2)
        >>> view
        AttentionView(2 layers, 65 queries, 65 keys)

        `view.save("attention.html")` writes the page. Cross-attention has two lists of
        tokens:

        >>> crossed = torch.tensor([[[[0.9, 0.1, 0.0], [0.0, 0.2, 0.8]]]])
        >>> view = show([crossed], ["le", "chat"], ["the", "black", "cat"])
        >>> 'chat → cat: 0.8' in view.svg()
        True
    """
    given = _by_name(weights)
    samples = {name: _of_sample(name, x, sample) for name, x in given.items()}
    chosen = _chosen(list(samples), layers)
    queries, keys = samples[chosen[0]].shape[-2:]
    for name in chosen:
        if samples[name].shape[-2:] != (queries, keys):
            raise ValueError(
                f"weights of {name} must be (b, heads, {queries}, {keys}), as those of "
                f"{chosen[0]}, got shape {tuple(given[name].shape)}; "
                "layers selects which to show."
            )
    alike = [name for name, x in samples.items() if x.shape[-2:] == (queries, keys)]
    _check_batch({n: given[n] for n in alike}, {"inputs": inputs, "context": context})
    if context is None and queries != keys:
        raise ValueError(
            "weights must be square unless context is given, "
            f"got {queries} queries and {keys} keys."
        )
    options = {"sample": sample, "grid": grid, "class_token": class_token}
    axis = _axis("inputs", inputs, queries, **options)
    other = axis if context is None else _axis("context", context, keys, **options)
    numbers = queries * keys * sum(2 + len(samples[name]) for name in chosen)
    bits = bits or (16 if numbers <= FINE else 8)
    square = axis is other
    rollouts = _rollouts(samples) if square else {}
    shown = tuple(
        _layer(name, samples[name], rollouts.get(name), heads, axis if square else None)
        for name in chosen
    )
    stored = sum(layer.maps.numel() for layer in shown) * bits // 8 * 4 // 3
    if stored > LIMIT:
        raise ValueError(
            f"weights must take at most {LIMIT / 1e6:.0f} MB in the page, "
            f"got {stored / 1e6:.0f} MB; layers, heads and bits=8 make them fewer."
        )
    return AttentionView(title, bits, shown, axis, other)


def _by_name(
    weights: Mapping[str, Sequence[Tensor]] | Sequence[Tensor],
) -> dict[str, Tensor]:
    if isinstance(weights, Mapping):
        named = dict(zip(weights, one_per_layer(weights), strict=True))
    elif isinstance(weights, Sequence):
        named = {f"layer {i}": x for i, x in enumerate(weights)}
    else:
        raise TypeError(
            "weights must be what capture_weights recorded, or a sequence of tensors, "
            f"got {describe(weights)}."
        )
    if not named:
        raise ValueError("weights must hold a tensor for each layer, got none.")
    for name, x in named.items():
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise TypeError(
                f"weights of {name} must be a floating-point tensor, got {describe(x)}."
            )
    return named


def _check_batch(weights: Mapping[str, Tensor], inputs: Mapping[str, object]) -> None:
    """Raise unless weights, and images in a batch, have one batch size.

    They differ if layers attend within windows, which are then stacked as samples.
    """
    batches = {
        n: x for n, x in inputs.items() if isinstance(x, Tensor) and x.dim() == 4
    }
    # Weights with five axes are the same for all samples.
    batches |= {f"weights of {n}": x for n, x in weights.items() if x.dim() != 5}
    for name, x in batches.items():
        first, other = next(iter(batches.items()))
        if len(x) != len(other):
            raise ValueError(
                f"{name} must have batch size {len(other)}, as {first}, got {len(x)}; "
                "weights within windows of an image cannot be shown."
            )


def _of_sample(name: str, x: Tensor, sample: int) -> Tensor:
    """Return `(heads, q, k)`; attention over images has two axes for each token."""
    x = widen(x.detach().cpu())
    if x.dim() == 5:  # the same for all samples
        return _checked(name, rearrange(x, "h i j k l -> h (i j) (k l)"))
    if x.dim() not in (3, 4, 6):
        raise ValueError(
            f"weights of {name} must be (b, heads, q, k), got shape {tuple(x.shape)}."
        )
    x = x[_index("sample", sample, len(x))]
    if x.dim() == 5:
        x = rearrange(x, "h i j k l -> h (i j) (k l)")
    return _checked(name, x[None] if x.dim() == 2 else x)


def _checked(name: str, x: Tensor) -> Tensor:
    if not x.numel():
        raise ValueError(
            f"weights of {name} must not be empty, got shape {tuple(x.shape)}."
        )
    low, high = (bound.item() for bound in x.aminmax())
    if not (low >= 0.0 and high < math.inf):
        raise ValueError(
            f"weights of {name} must be finite and zero or greater, "
            f"got {low:.3g} to {high:.3g}."
        )
    return x


def _chosen(names: list[str], layers: str | Sequence[int | str] | None) -> list[str]:
    if layers is None:
        return names
    if isinstance(layers, str):
        found = [name for name in names if layers in name]
    else:
        for layer in layers:
            if isinstance(layer, str) and layer not in names:
                raise ValueError(f"layers must be among {names}, got {layer!r}.")
        found = [
            layer
            if isinstance(layer, str)
            else names[_index("layers", layer, len(names))]
            for layer in layers
        ]
    if not found:
        raise ValueError(f"layers must select some of {names}, got {layers!r}.")
    return found


def _index(name: str, index: int, count: int) -> int:
    if isinstance(index, bool) or not isinstance(index, int):
        raise TypeError(f"{name} must be an integer, got {describe(index)}.")
    if not -count <= index < count:
        raise ValueError(f"{name} must be from 0 to {count - 1}, got {index}.")
    return index % count


def _axis(
    name: str,
    inputs: Tensor | Sequence[str],
    count: int,
    *,
    sample: int,
    grid: tuple[int, int] | None,
    class_token: bool,
) -> Axis:
    if isinstance(inputs, Tensor):
        image = _picture(name, inputs, sample)
        return _image_axis(image, count, grid, class_token)
    if isinstance(inputs, str) or not all(isinstance(x, str) for x in inputs):
        raise TypeError(
            f"{name} must be an image as a tensor, or a list of tokens as texts, "
            f"got {describe(inputs)}."
        )
    if len(inputs) != count:
        raise ValueError(
            f"{name} must hold one token for each of {count}, got {len(inputs)}."
        )
    return Axis(tuple(inputs))


def _picture(name: str, image: Tensor, sample: int) -> Tensor:
    """Return an image of bytes, `(height, width, channels)`."""
    image = image.detach().cpu()
    given = tuple(image.shape)
    if image.dim() == 4:
        image = image[_index("sample", sample, len(image))]
    if image.dim() == 2:
        image = image[None]
    if image.dim() != 3 or image.shape[0] not in (1, 3) or not image.numel():
        raise ValueError(
            f"{name} must be an image, (channels, height, width) with one or three "
            f"channels, got shape {given}."
        )
    image = rearrange(image, "c h w -> h w c")
    if image.dtype == torch.uint8:
        return image
    if not image.is_floating_point():
        raise TypeError(
            f"{name} must be bytes or floating-point numbers, got {image.dtype}."
        )
    image = image.double()
    low, high = (bound.item() for bound in image.aminmax())
    if not math.isfinite(low + high):
        raise ValueError(f"{name} must be finite, got {low} to {high}.")
    if low < 0.0 or high > 1.0:
        image = (image - low) / ((high - low) or 1.0)
    return (255 * image).round().to(torch.uint8)


def _image_axis(
    image: Tensor, count: int, grid: tuple[int, int] | None, class_token: bool
) -> Axis:
    height, width, _ = image.shape
    if grid is None:
        grid = _guess(height, width, count)
    rows, columns = height_and_width("grid", grid)
    lead = count - rows * columns
    if lead < 0:
        raise ValueError(
            f"grid must have at most as many patches as there are tokens, {count}, "
            f"got {rows} by {columns}."
        )
    registers = range(lead - int(class_token and lead > 0))
    leading = ["class token"] if class_token and lead else []
    leading += [f"register {i}" for i in registers]
    patches = [f"row {i}, column {j}" for i in range(rows) for j in range(columns)]
    address = "data:image/png;base64," + base64.b64encode(png(image)).decode()
    labels = tuple(leading + patches)
    return Axis(labels, lead, (rows, columns), (height, width), address)


def _guess(height: int, width: int, count: int) -> tuple[int, int]:
    sides = [p for p in range(1, min(height, width) + 1) if not height % p + width % p]
    for lead in range(min(LEADING + 1, count)):
        for side in sides:
            rows, columns = height // side, width // side
            if rows * columns + lead == count:
                return rows, columns
    raise ValueError(
        f"grid must be given: {count} tokens fit no grid of square patches of an image "
        f"of {height} by {width} pixels, with at most {LEADING} tokens before them."
    )


def _rollouts(samples: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the rollout up to each layer, if all have the same tokens."""
    sizes = {size for x in samples.values() for size in x.shape[-2:]}
    found: dict[str, Tensor] = {}
    if len(sizes) == 1:
        so_far = torch.eye(sizes.pop(), dtype=torch.float64)
        for name, x in samples.items():
            so_far = attention_rollout([x[None].double()])[0] @ so_far
            found[name] = so_far
    return found


def _layer(
    name: str,
    weights: Tensor,
    rollout: Tensor | None,
    heads: Sequence[int] | None,
    axis: Axis | None,
) -> _Layer:
    count = len(weights)
    chosen = range(count) if heads is None else heads
    chosen = [_index("heads", head, count) for head in chosen]
    names, maps = ["mean"], [reduce(weights, "h q k -> q k", "mean")]
    if rollout is not None:
        names, maps = [*names, "rollout"], [*maps, rollout.to(weights.dtype)]
    names += [f"head {head}" for head in chosen]
    stack = torch.stack([*maps, *(weights[head] for head in chosen)])
    distances = None
    if axis is not None and axis.grid and axis.size:
        patches = stack[:, axis.lead :, axis.lead :]
        sides = zip(axis.size, axis.grid, strict=True)
        height, width = (max(1, size // number) for size, number in sides)
        found = attention_distance(
            patches, axis.grid, patch_size=(height, width), class_token=False
        )
        distances = tuple(found.tolist())
    return _Layer(name, tuple(names), stack, distances)
