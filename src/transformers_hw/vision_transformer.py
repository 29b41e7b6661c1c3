r"""The Vision Transformer: a picture read as a sentence of patches.

A picture is cut into patches, each patch becomes a token, a class token is put in
front, every token gets a code of its place, and an encoder does the rest:

$$
z_0 = [\,x_\text{class};\; x_1 E;\; \dots;\; x_n E\,] + P,
\qquad
z_L = \operatorname{Encoder}(z_0),
\qquad
y = N(z_L)_0\, W + b
$$

with $x_i$ the pixels of patch $i$ in one row, $E$ the patch embedding, $P$ the
positions and $N$ the encoder's final layer normalisation. That the picture has two
axes enters in two places only: where it is cut, and where the positions are
resampled for a picture of another size.
"""

import re
from typing import Literal, Unpack

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Float
from torch import Tensor, nn

from transformers_hw._checks import (
    check_choice,
    check_float,
    check_sizes,
    height_and_width,
)
from transformers_hw.positional_encoding import (
    LearnedPositions2D,
    SinusoidalPositions2D,
)
from transformers_hw.transformer import Encoder, FeedForward, LayerOptions

Pool = Literal["class", "mean"]
PicturePositions = Literal["learned", "learned_axes", "sinusoidal", "none"]

# Width, depth and heads; hidden layers are four times as wide as tokens.
SIZES = {
    "Ti": (192, 12, 3),
    "S": (384, 12, 6),
    "B": (768, 12, 12),
    "L": (1024, 24, 16),
    "H": (1280, 32, 16),
}


class PatchEmbedding(nn.Module):
    r"""Cut pictures into patches and map each, flattened, to a token.

    $$
    t_{r,s} = b + \sum_{c,i,j} W_{\,\cdot\,,(c,i,j)}\;
    x_{c,\; r h + i,\; s w + j}
    $$

    for patches of $h$ by $w$ pixels. This is a convolution whose stride equals its
    kernel, the one convolution of a Vision Transformer that sees more than one
    place at a time: see `as_convolution`.

    Args:
        patch: Rows and columns of pixels in a patch; one number for a square.
        channels: Number of channels of a picture.
        dim: Width of a token.
        device: Where to put the parameters.
        dtype: Type of the parameters.

    Raises:
        ValueError: If a size is not positive.

    Examples:
        >>> embedding = PatchEmbedding((4, 2), channels=3, dim=5)
        >>> embedding(torch.randn(1, 3, 8, 6)).shape
        torch.Size([1, 2, 3, 5])

    References:
        Dosovitskiy et al. (2021), [An Image is Worth 16x16 Words
        ](https://arxiv.org/abs/2010.11929), section 3.1, equation 1.
    """

    def __init__(
        self,
        patch: int | tuple[int, int],
        channels: int,
        dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.patch = height_and_width("patch", patch)
        check_sizes(channels=channels, dim=dim)
        self.channels = channels
        pixels = channels * self.patch[0] * self.patch[1]
        self.proj = nn.Linear(pixels, dim, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights that keep the variance of the pixels; zero the biases."""
        nn.init.trunc_normal_(self.proj.weight, std=self.proj.in_features**-0.5)
        nn.init.zeros_(self.proj.bias)

    def forward(
        self, pictures: Float[Tensor, "b channels height width"]
    ) -> Float[Tensor, "b rows columns dim"]:
        """Turn pictures into grids of tokens.

        Args:
            pictures: Pictures whose height and width are multiples of the patch's.

        Returns:
            A token for each patch, in the patches' places.

        Raises:
            TypeError: If the pictures are not floating-point.
            ValueError: If they have other axes or channels, or the patch does not
                divide them.
        """
        check_float("pictures", pictures, "batch", self.channels, "height", "width")
        _grid((pictures.shape[2], pictures.shape[3]), self.patch)
        i, j = self.patch
        # The order (c, i, j) is the one in which a convolution keeps its weights.
        axes = "b c (rows i) (columns j) -> b rows columns (c i j)"
        return self.proj(rearrange(pictures, axes, i=i, j=j))

    def as_convolution(self) -> nn.Conv2d:
        """Give the convolution that computes the same tokens.

        Returns:
            A convolution with a copy of the weights. Its output keeps the width of
            a token in the second axis, as convolutions do.

        Examples:
            >>> embedding, x = PatchEmbedding(4, 3, 5), torch.randn(1, 3, 8, 12)
            >>> tokens = rearrange(embedding.as_convolution()(x), "b d r s -> b r s d")
            >>> torch.allclose(tokens, embedding(x), atol=1e-6)
            True
        """
        weight, (i, j) = self.proj.weight, self.patch
        convolution = nn.Conv2d(
            self.channels,
            self.proj.out_features,
            kernel_size=self.patch,
            stride=self.patch,
            device=weight.device,
            dtype=weight.dtype,
        )
        kernel = rearrange(weight, "d (c i j) -> d c i j", i=i, j=j)
        convolution.load_state_dict({"weight": kernel, "bias": self.proj.bias})
        return convolution

    def extra_repr(self) -> str:
        """Show the patch in `repr`."""
        return f"patch={self.patch}, channels={self.channels}"


class LearnedAxes2D(nn.Module):
    r"""Learn half a code for each row and half a code for each column.

    $$P_{(i,j)} = [\,R_i \; C_j\,]$$

    A cell's code is put together from its row's and its column's, so the codes know
    that the picture has two axes. They are special cases of a free table
    ([`LearnedPositions2D`][transformers_hw.positional_encoding.LearnedPositions2D]),
    which can learn them, and much besides.

    Args:
        grid: `(rows, columns)` of the grid.
        dim: Width of a code, an even number.
        device: Where to put the tables.
        dtype: Type of the tables.

    Raises:
        ValueError: If `grid` is not valid, or `dim` not positive and even.

    Examples:
        >>> LearnedAxes2D((3, 4), 6).codes((6, 8)).shape
        torch.Size([6, 8, 6])

    References:
        Dosovitskiy et al. (2021), [An Image is Worth 16x16 Words
        ](https://arxiv.org/abs/2010.11929), appendix D.4, "2-dimensional positional
        embedding".
    """

    def __init__(
        self,
        grid: tuple[int, int],
        dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if dim < 2 or dim % 2:
            raise ValueError(f"dim must be positive and even, got {dim}.")
        rows, columns = height_and_width("grid", grid)
        place = {"device": device, "dtype": dtype}
        self.rows = LearnedPositions2D((rows, 1), dim // 2, **place)
        self.columns = LearnedPositions2D((1, columns), dim // 2, **place)

    def codes(
        self, grid: tuple[int, int] | None = None
    ) -> Float[Tensor, "rows columns p"]:
        """Give the codes of a grid of `(rows, columns)`, resampled if it differs."""
        rows, columns = grid or (self.rows.grid[0], self.columns.grid[1])
        by_row = self.rows.codes((rows, 1)).expand(rows, columns, -1)
        by_column = self.columns.codes((1, columns)).expand(rows, columns, -1)
        return torch.cat([by_row, by_column], dim=-1)

    def forward(
        self, x: Float[Tensor, "*batch rows columns d"]
    ) -> Float[Tensor, "*batch rows columns d"]:
        """Add their codes to a grid of tokens."""
        check_float("x", x, "...", "rows", "columns", 2 * self.rows.cells.dim)
        return x + self.codes((x.shape[-3], x.shape[-2])).to(x)


class VisionTransformer(nn.Module):
    r"""Classify pictures with an encoder that reads patches.

    The encoder is the one of the
    [`transformer`][transformers_hw.transformer.Encoder] chapter: without a decoder
    or a causal mask, and, unlike the first Transformer, pre-norm and with GELU. The
    class token asks on behalf of the whole picture; what it has gathered after the
    last normalisation is all the head sees. So in the last layer only the class token
    has to ask, which spares most of that layer's work: a call of the model does no
    more, and `encode` computes every token.

    The class token and its position are two vectors of which only the sum matters:
    $x_\text{class} + p_0$. Both are kept, as `class_token` and `class_position`, so
    that parameters can be counted and carried over as published. Codes without a
    parameter per cell ask for none of the class token: there, `class_position` is
    `None`.

    Pictures of another size than `picture` are welcome if the patch divides them:
    sinusoidal codes go on, learnt ones are resampled.

    Args:
        picture: Height and width of the pictures that positions are learnt for; one
            number for a square.
        patch: Height and width of a patch; one number for a square.
        classes: Number of classes.
        dim: Width of a token.
        depth: Number of layers.
        heads: Number of attention heads.
        hidden_dim: Width of the feed-forward networks' hidden layers; `4 * dim` by
            default.
        channels: Number of channels of a picture.
        pool: What the head sees: `"class"`, the class token, or `"mean"`, the mean
            of the patches' tokens.
        class_token: Whether there is a class token; by default if the head sees it.
        positions: `"learned"`, a code for each cell of the grid: the paper's 1-D
            codes are this same table, its cells numbered row by row;
            `"learned_axes"`, its 2-D codes
            ([`LearnedAxes2D`][transformers_hw.vision_transformer.LearnedAxes2D]);
            `"sinusoidal"`, half for the row and half for the column; or `"none"`.
        **options: Of each
            [`EncoderLayer`][transformers_hw.transformer.EncoderLayer]; `activation`
            is `"gelu"` and `eps` is $10^{-6}$ by default. `dropout` also acts on
            the tokens that enter the encoder.

    Raises:
        ValueError: If an argument is not valid, or the patch does not divide the
            picture.

    Examples:
        >>> model = VisionTransformer(
        ...     (8, 12), 4, classes=7, dim=16, depth=2, heads=2, channels=1
        ... )
        >>> model(torch.randn(5, 1, 8, 12)).shape
        torch.Size([5, 7])
        >>> model(torch.randn(5, 1, 16, 16)).shape
        torch.Size([5, 7])

    References:
        Dosovitskiy et al. (2021), [An Image is Worth 16x16 Words
        ](https://arxiv.org/abs/2010.11929), section 3.1 and figure 1; appendix D.3
        for the mean, D.4 for the positions.
    """

    def __init__(
        self,
        picture: int | tuple[int, int],
        patch: int | tuple[int, int],
        *,
        classes: int,
        dim: int,
        depth: int,
        heads: int,
        hidden_dim: int | None = None,
        channels: int = 3,
        pool: Pool = "class",
        class_token: bool | None = None,
        positions: PicturePositions = "learned",
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        check_sizes(classes=classes, dim=dim)
        check_choice("pool", pool, ("class", "mean"))
        if pool == "class" and class_token is False:
            raise ValueError("pool 'class' needs a class token, got class_token=False.")
        device, dtype = options.get("device"), options.get("dtype")
        self.patch_embedding = PatchEmbedding(
            patch, channels, dim, device=device, dtype=dtype
        )
        self.grid = _grid(
            height_and_width("picture", picture), self.patch_embedding.patch
        )
        self.pool = pool
        self.positions = _positions(positions, self.grid, dim, device, dtype)
        self.class_token = self.class_position = None
        if pool == "class" or class_token:
            vector = torch.empty(dim, device=device, dtype=dtype)
            self.class_token = nn.Parameter(vector)
            if positions.startswith("learned"):
                self.class_position = nn.Parameter(torch.empty_like(vector))
        self.dropout = nn.Dropout(options.get("dropout", 0.0))
        layers: LayerOptions = {"activation": "gelu", "eps": 1e-6, **options}
        hidden_dim = 4 * dim if hidden_dim is None else hidden_dim
        self.encoder = Encoder(dim, heads, hidden_dim, depth, **layers)
        self.head = nn.Linear(dim, classes, device=device, dtype=dtype)
        self.reset_parameters()

    @classmethod
    def from_preset(
        cls,
        name: str,
        *,
        classes: int,
        picture: int | tuple[int, int] = 224,
        channels: int = 3,
        pool: Pool = "class",
        positions: PicturePositions = "learned",
        **options: Unpack[LayerOptions],
    ) -> "VisionTransformer":
        """Build a model of a published size, with fresh weights.

        Args:
            name: `"ViT-<size>/<patch>"` with a size of Ti, S, B, L or H, such as
                `"ViT-B/16"`.
            classes: Number of classes.
            picture: Height and width of the pictures; one number for a square.
            channels: Number of channels of a picture.
            pool: What the head sees.
            positions: How places are encoded.
            **options: Of each layer.

        Returns:
            The model.

        Raises:
            ValueError: If there is no such size, or the patch does not divide the
                picture.

        Examples:
            >>> model = VisionTransformer.from_preset(
            ...     "ViT-B/16", classes=1000, device="meta"
            ... )
            >>> sum(p.numel() for p in model.parameters())
            86567656

        References:
            Dosovitskiy et al. (2021), [An Image is Worth 16x16 Words
            ](https://arxiv.org/abs/2010.11929), table 1, for B, L and H; Touvron et
            al. (2021), [Data-efficient Image Transformers
            ](https://arxiv.org/abs/2012.12877), table 1, for Ti and S.
        """
        found = re.fullmatch(r"ViT-(\w+)/([1-9]\d*)", name)
        if found is None or found[1] not in SIZES:
            known = ", ".join(f"ViT-{size}" for size in SIZES)
            raise ValueError(
                f"name must be one of {known}, a slash and the size of a patch, such "
                f"as ViT-B/16, got {name!r}."
            )
        dim, depth, heads = SIZES[found[1]]
        return cls(
            picture,
            int(found[2]),
            classes=classes,
            dim=dim,
            depth=depth,
            heads=heads,
            channels=channels,
            pool=pool,
            positions=positions,
            **options,
        )

    def reset_parameters(self) -> None:
        """Draw small vectors and a small head; Glorot's rule for hidden layers.

        The head starts small, not at zero: the first guesses are nearly even, and
        yet the gradient reaches every layer.
        """
        for vector in (self.class_token, self.class_position, self.head.weight):
            if vector is not None:
                nn.init.trunc_normal_(vector, std=0.02)
        nn.init.zeros_(self.head.bias)
        for module in self.encoder.modules():
            if isinstance(module, FeedForward):
                for projection in (module.hidden_proj, module.output_proj):
                    nn.init.xavier_uniform_(projection.weight)
                    if projection.bias is not None:
                        nn.init.zeros_(projection.bias)

    def encode(
        self,
        pictures: Float[Tensor, "b channels height width"],
        *,
        first: int | None = None,
    ) -> Float[Tensor, "b n dim"]:
        """Give every token as it leaves the encoder.

        Args:
            pictures: Pictures that the patch divides.
            first: Give only so many, and compute no others in the last layer.

        Returns:
            The class token's, if there is one, then the patches', row by row.
        """
        grid = self.positions(self.patch_embedding(pictures))
        tokens = rearrange(grid, "b rows columns d -> b (rows columns) d")
        if self.class_token is not None:
            token = self.class_token
            if self.class_position is not None:
                token = token + self.class_position
            token = repeat(token.to(tokens), "d -> b 1 d", b=tokens.shape[0])
            tokens = torch.cat([token, tokens], dim=1)
        return self.encoder(self.dropout(tokens), first=first)

    def features(
        self, pictures: Float[Tensor, "b channels height width"]
    ) -> Float[Tensor, "b dim"]:
        """Represent each picture by one vector, the one the head sees.

        Args:
            pictures: Pictures that the patch divides.

        Returns:
            The class token, or the mean of the patches' tokens, after the encoder's
            final normalisation.
        """
        if self.pool == "class":
            # No other token of the last layer is read, so no other asks there.
            return self.encode(pictures, first=1)[:, 0]
        tokens = self.encode(pictures)
        patches = tokens if self.class_token is None else tokens[:, 1:]
        return reduce(patches, "b n d -> b d", "mean")

    def forward(
        self, pictures: Float[Tensor, "b channels height width"]
    ) -> Float[Tensor, "b classes"]:
        """Give the logits of each picture's classes.

        Args:
            pictures: Pictures that the patch divides.

        Returns:
            The logits.

        Raises:
            TypeError: If the pictures are not floating-point.
            ValueError: If they have other axes or channels, or the patch does not
                divide them.
        """
        return self.head(self.features(pictures))


def _positions(
    name: PicturePositions,
    grid: tuple[int, int],
    dim: int,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> nn.Module:
    if name == "learned":
        return LearnedPositions2D(grid, dim, device=device, dtype=dtype)
    if name == "learned_axes":
        return LearnedAxes2D(grid, dim, device=device, dtype=dtype)
    check_choice("positions", name, ("learned", "learned_axes", "sinusoidal", "none"))
    return SinusoidalPositions2D(dim) if name == "sinusoidal" else nn.Identity()


def _grid(picture: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
    (height, width), (i, j) = picture, patch
    if height < 1 or width < 1 or height % i or width % j:
        raise ValueError(
            "the patch must divide the picture, "
            f"got a patch of {i}×{j} and a picture of {height}×{width} pixels."
        )
    return height // i, width // j
