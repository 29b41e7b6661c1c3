r"""The Vision Transformer: classify an image as a sequence of patches.

An image is cut into patches, each patch becomes a token, a class token is put in
front, position embeddings are added, and a Transformer encoder follows:

$$
z_0 = [\,x_\text{class};\; x_1 E;\; \dots;\; x_n E\,] + P,
\qquad
z_L = \operatorname{Encoder}(z_0),
\qquad
y = N(z_L)_0\, W + b
$$

Here $x_i$ holds the pixels of patch $i$ in one row, $E$ is the patch embedding, $P$
the position embeddings, and $N$ the encoder's final layer norm. The model uses the
image's two axes in two steps only: to cut patches, and to interpolate positions for
an image of another size.
"""

import re
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, Unpack

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Float
from torch import Tensor, nn

from transformers_hw._engine.arguments import (
    Factory,
    check_sizes,
    height_and_width,
)
from transformers_hw._engine.shapes import checked
from transformers_hw.positional_encoding import (
    AxialPositions2D,
    LearnedPositions2D,
    SinusoidalPositions2D,
)
from transformers_hw.transformer import (
    Encoder,
    FeedForward,
    LayerConfig,
    LayerNorm,
    LayerOptions,
)
from transformers_hw.transformer.config import Activation, split_options

Pool = Literal["class", "mean"]
Pooler = Literal["norm", "tanh"] | None
Positions = Literal["learned", "axial", "sinusoidal", "none"]
Size = int | tuple[int, int]

# Width, depth and heads; hidden layers are four times as wide as tokens.
SIZES = {
    "Ti": (192, 12, 3),
    "S": (384, 12, 6),
    "B": (768, 12, 12),
    "L": (1024, 24, 16),
    "H": (1280, 32, 16),
}


class PatchEmbedding(nn.Module):
    r"""Cut images into patches and map each, flattened, to a token.

    $$
    t_{r,s} = b + \sum_{c,i,j} W_{\,\cdot\,,(c,i,j)}\;
    x_{c,\; r h + i,\; s w + j}
    $$

    for patches of $h$ by $w$ pixels. This is a convolution whose stride equals its
    kernel size; `as_convolution` returns it.

    Args:
        patch_size: Height and width of a patch in pixels; one number for a square.
        channels: Number of channels of an image.
        dim: Width of a token.
        **factory: `device` and `dtype` of the parameters.

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

    @checked
    def __init__(
        self, patch_size: Size, channels: int, dim: int, **factory: Unpack[Factory]
    ) -> None:
        super().__init__()
        self.patch_size = height_and_width("patch_size", patch_size)
        check_sizes(channels=channels, dim=dim)
        self.channels = channels
        pixels = channels * self.patch_size[0] * self.patch_size[1]
        self.proj = nn.Linear(pixels, dim, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights that preserve the variance of the pixels; zero the bias."""
        nn.init.trunc_normal_(self.proj.weight, std=self.proj.in_features**-0.5)
        nn.init.zeros_(self.proj.bias)

    @checked
    def forward(
        self, images: Float[Tensor, "b {self.channels} height width"]
    ) -> Float[Tensor, "b rows columns dim"]:
        """Embed the patches of images.

        Args:
            images: Images whose height and width are multiples of the patch's.

        Returns:
            A grid of tokens, one for each patch.

        Raises:
            ValueError: If the patch does not divide the images.
        """
        _grid((images.shape[2], images.shape[3]), self.patch_size)
        i, j = self.patch_size
        # The order (c, i, j) is the one in which a convolution keeps its weights.
        axes = "b c (rows i) (columns j) -> b rows columns (c i j)"
        return self.proj(rearrange(images, axes, i=i, j=j))

    def as_convolution(self) -> nn.Conv2d:
        """Return the convolution that computes the same tokens.

        Returns:
            A convolution with a copy of the weights; its output has the features in
            the second axis.

        Examples:
            >>> embedding, x = PatchEmbedding(4, 3, 5), torch.randn(1, 3, 8, 12)
            >>> tokens = rearrange(embedding.as_convolution()(x), "b d r s -> b r s d")
            >>> torch.allclose(tokens, embedding(x), atol=1e-6)
            True
        """
        weight, (i, j) = self.proj.weight, self.patch_size
        convolution = nn.Conv2d(
            self.channels,
            self.proj.out_features,
            kernel_size=self.patch_size,
            stride=self.patch_size,
            device=weight.device,
            dtype=weight.dtype,
        )
        kernel = rearrange(weight, "d (c i j) -> d c i j", i=i, j=j)
        convolution.load_state_dict({"weight": kernel, "bias": self.proj.bias})
        return convolution

    def extra_repr(self) -> str:
        """Show the patch size in `repr`."""
        return f"patch_size={self.patch_size}, channels={self.channels}"


class VisionTransformerOptions(LayerOptions, total=False):
    """The keywords that a preset passes on to `VisionTransformer`."""

    dim: int
    depth: int
    heads: int
    hidden_dim: int | None
    channels: int
    pool: Pool
    class_token: bool | None
    pooler: Pooler
    positions: Positions


@dataclass(frozen=True)
class VisionTransformerConfig(LayerConfig):
    """The settings of a Vision Transformer.

    `VisionTransformer(**asdict(config))` builds the model again; the arguments are
    described there.
    """

    depth: int
    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    num_classes: int | None
    channels: int
    pool: Pool
    class_token: bool
    pooler: Pooler
    positions: Positions
    _: KW_ONLY
    activation: Activation = "gelu"
    eps: float = 1e-6

    def __post_init__(self) -> None:
        """Raise unless sizes are positive and patches divide images."""
        super().__post_init__()
        check_sizes(depth=self.depth, channels=self.channels)
        if self.num_classes is not None:
            check_sizes(num_classes=self.num_classes)
        if self.pool == "class" and not self.class_token:
            raise ValueError("pool 'class' needs a class token, got class_token=False.")
        _grid(self.image_size, self.patch_size)


class VisionTransformer(nn.Module):
    r"""Classify images with a Transformer encoder of patches.

    The encoder is the one of the
    [`transformer`][transformers_hw.transformer.Encoder] chapter, pre-norm and with
    GELU; there is no decoder and no mask. The class token collects information from
    all patches, and the head reads it.

    Only the sum of the class token and its position embedding enters the model,
    $x_\text{class} + p_0$. With learned positions both are parameters, `class_token`
    and `class_position`, so that the number of parameters is the published one.

    Images of another size than `image_size` are accepted if the patch divides them:
    learned position embeddings are then interpolated.

    Args:
        image_size: Height and width of the images that positions are learned for; one
            number for a square.
        patch_size: Height and width of a patch; one number for a square.
        num_classes: Number of classes; `None` for a model without a head, which
            returns the features.
        dim: Width of a token.
        depth: Number of layers.
        heads: Number of attention heads.
        hidden_dim: Width of the feed-forward networks' hidden layers; `4 * dim` by
            default.
        channels: Number of channels of an image.
        pool: What the head reads: `"class"`, the class token, or `"mean"`, the mean of
            the patches' tokens.
        class_token: Whether there is a class token; by default only if `pool` needs it.
        pooler: Layer between pooling and head: `"norm"`, the final layer norm, moved
            from before pooling to after it; `"tanh"`, a linear layer and a tanh, the
            hidden layer of the paper's pre-training head; or `None`.
        positions: `"learned"`, an embedding for each position of the grid, the paper's
            1-D embeddings, numbered row by row;
            `"axial"`, its 2-D embeddings
            ([`AxialPositions2D`][transformers_hw.positional_encoding.AxialPositions2D]);
            `"sinusoidal"`, half for the row and half for the column; or `"none"`.
        **options: Keywords of
            [`LayerOptions`][transformers_hw.transformer.LayerOptions]; here
            `activation` is `"gelu"` and `eps` $10^{-6}$ by default. `dropout` also
            acts on the tokens that enter the encoder.

    Raises:
        ValueError: If a number is out of range, a name is unknown, `heads` does not
            divide `dim`, or the patch does not divide the image.

    Examples:
        >>> model = VisionTransformer(
        ...     (8, 12), 4, num_classes=7, dim=16, depth=2, heads=2, channels=1
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

    @checked
    def __init__(
        self,
        image_size: Size,
        patch_size: Size,
        *,
        num_classes: int | None,
        dim: int,
        depth: int,
        heads: int,
        hidden_dim: int | None = None,
        channels: int = 3,
        pool: Pool = "class",
        class_token: bool | None = None,
        pooler: Pooler = None,
        positions: Positions = "learned",
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        settings, factory = split_options(options)
        sizes = (dim, heads, 4 * dim if hidden_dim is None else hidden_dim, depth)
        self.config = config = VisionTransformerConfig(
            *sizes,
            height_and_width("image_size", image_size),
            height_and_width("patch_size", patch_size),
            num_classes,
            channels,
            pool,
            pool == "class" if class_token is None else class_token,
            pooler,
            positions,
            **settings,
        )
        self.grid = _grid(config.image_size, config.patch_size)
        self.patch_embedding = PatchEmbedding(patch_size, channels, dim, **factory)
        self.positions = _positions(positions, self.grid, dim, factory)
        self.class_token = self.class_position = None
        if config.class_token:
            self.class_token = nn.Parameter(torch.empty(dim, **factory))
            if positions in ("learned", "axial"):
                self.class_position = nn.Parameter(torch.empty(dim, **factory))
        self.dropout = nn.Dropout(config.dropout)
        final_norm = False if pooler == "norm" else None
        layers = {**config.options, **factory}
        self.encoder = Encoder(*sizes, final_norm=final_norm, **layers)
        self.pooler = nn.Identity()
        if pooler == "norm":
            bias = bool(config.biases("norm"))
            self.pooler = LayerNorm(dim, eps=config.eps, bias=bias, **factory)
        elif pooler == "tanh":
            self.pooler = nn.Sequential(nn.Linear(dim, dim, **factory), nn.Tanh())
        self.head = _head(dim, num_classes, factory)
        self.reset_parameters()

    @classmethod
    @checked
    def from_preset(
        cls,
        name: str,
        *,
        num_classes: int | None,
        image_size: Size = 224,
        **options: Unpack[VisionTransformerOptions],
    ) -> "VisionTransformer":
        """Build a model of a published size, with fresh weights.

        Args:
            name: `"ViT-<size>/<patch>"` with a size of Ti, S, B, L or H, such as
                `"ViT-B/16"`, in any case.
            num_classes: Number of classes.
            image_size: Height and width of the images; one number for a square.
            **options: Other keywords of the constructor.

        Returns:
            The model.

        Raises:
            ValueError: If there is no such size, or the patch does not divide the
                image.

        Examples:
            >>> model = VisionTransformer.from_preset(
            ...     "ViT-B/16", num_classes=1000, device="meta"
            ... )
            >>> sum(p.numel() for p in model.parameters())
            86567656

        References:
            Dosovitskiy et al. (2021), [An Image is Worth 16x16 Words
            ](https://arxiv.org/abs/2010.11929), table 1, for B, L and H; Touvron et
            al. (2021), [Data-efficient Image Transformers
            ](https://arxiv.org/abs/2012.12877), table 1, for Ti and S.
        """
        found = re.fullmatch(r"vit-(\w+)/([1-9]\d*)", name.lower())
        presets = {size.lower(): numbers for size, numbers in SIZES.items()}
        if found is None or found[1] not in presets:
            known = ", ".join(f"ViT-{size}" for size in SIZES)
            raise ValueError(
                f"name must be one of {known}, a slash and the size of a patch, such "
                f"as ViT-B/16, got {name!r}."
            )
        dim, depth, heads = presets[found[1]]
        sizes = {"dim": dim, "depth": depth, "heads": heads, **options}
        return cls(image_size, int(found[2]), num_classes=num_classes, **sizes)

    def reset_parameters(self) -> None:
        """Initialize vectors and head with small numbers, hidden layers by Glorot."""
        for vector in (self.class_token, self.class_position):
            if vector is not None:
                nn.init.trunc_normal_(vector, std=0.02)
        _reset_head(self.head)
        for module in self.encoder.modules():
            if isinstance(module, FeedForward):
                for projection in (module.hidden_proj, module.output_proj):
                    nn.init.xavier_uniform_(projection.weight)
                    if projection.bias is not None:
                        nn.init.zeros_(projection.bias)

    @checked
    def reset_head(self, num_classes: int | None) -> None:
        """Replace the head by a new one, to fine-tune the model on other classes.

        Args:
            num_classes: Number of classes; `None` for no head.
        """
        self.config = replace(self.config, num_classes=num_classes)
        like = self.patch_embedding.proj.weight
        factory = {"device": like.device, "dtype": like.dtype}
        self.head = _head(self.config.dim, num_classes, factory)
        _reset_head(self.head)

    @checked
    def forward(
        self, images: Float[Tensor, "b {self.config.channels} height width"]
    ) -> Float[Tensor, "b classes"]:
        """Return the logits of the classes.

        Args:
            images: Images that the patch divides.

        Returns:
            The logits; the features, if the model has no head.

        Raises:
            ValueError: If the patch does not divide the images.
        """
        tokens = self.embed(images)
        tokens = self.encoder(tokens)
        return self.head(self.pool(tokens))

    @checked
    def embed(
        self, images: Float[Tensor, "b {self.config.channels} height width"]
    ) -> Float[Tensor, "b n {self.config.dim}"]:
        """Return the tokens that enter the encoder, with any class token first."""
        grid = self.positions(self.patch_embedding(images))
        tokens = rearrange(grid, "b rows columns d -> b (rows columns) d")
        if self.class_token is not None:
            first = self.class_token
            if self.class_position is not None:
                first = first + self.class_position
            first = repeat(first, "d -> b 1 d", b=tokens.shape[0])
            tokens = torch.cat([first, tokens], dim=1)
        return self.dropout(tokens)

    @checked
    def encode(
        self, images: Float[Tensor, "b {self.config.channels} height width"]
    ) -> Float[Tensor, "b n {self.config.dim}"]:
        """Return every token as it leaves the encoder.

        Args:
            images: Images that the patch divides.

        Returns:
            The class token, if there is one, then those of the patches, row by row.
        """
        return self.encoder(self.embed(images))

    @checked
    def pool(
        self, tokens: Float[Tensor, "b n {self.config.dim}"]
    ) -> Float[Tensor, "b {self.config.dim}"]:
        """Pool the tokens of each image into one vector, the input of the head.

        Args:
            tokens: Output of `encode`.

        Returns:
            The class token, or the mean of the patches' tokens, after the pooler.
        """
        if self.config.pool == "class":
            return self.pooler(tokens[:, 0])
        patches = tokens[:, 1:] if self.config.class_token else tokens
        return self.pooler(reduce(patches, "b n d -> b d", "mean"))

    @checked
    def features(
        self, images: Float[Tensor, "b {self.config.channels} height width"]
    ) -> Float[Tensor, "b {self.config.dim}"]:
        """Return one vector for each image, the input of the head.

        Args:
            images: Images that the patch divides.
        """
        return self.pool(self.encode(images))


def _head(dim: int, num_classes: int | None, factory: dict[str, Any]) -> nn.Module:
    if num_classes is None:
        return nn.Identity()
    return nn.Linear(dim, num_classes, **factory)


def _reset_head(head: nn.Module) -> None:
    # Small, so that the first predictions are nearly uniform, but not zero, so that
    # the gradient reaches every layer.
    if isinstance(head, nn.Linear):
        nn.init.trunc_normal_(head.weight, std=0.02)
        nn.init.zeros_(head.bias)


def _positions(
    name: Positions, grid: tuple[int, int], dim: int, factory: dict[str, Any]
) -> nn.Module:
    if name == "learned":
        return LearnedPositions2D(grid, dim, **factory)
    if name == "axial":
        return AxialPositions2D(grid, dim, **factory)
    return SinusoidalPositions2D(dim) if name == "sinusoidal" else nn.Identity()


def _grid(image: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
    (height, width), (i, j) = image, patch
    if height < 1 or width < 1 or height % i or width % j:
        raise ValueError(
            "the patch must divide the image, "
            f"got a patch of {i}×{j} and an image of {height}×{width} pixels."
        )
    return height // i, width // j
