"""The Vision Transformer and its settings."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, Unpack

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Float
from torch import Tensor, nn

from transformers_hw._engine.arguments import (
    NOT_INTEGERS,
    check_lengths,
    check_sizes,
    height_and_width,
)
from transformers_hw._engine.shapes import checked
from transformers_hw.positional_encoding import (
    AxialPositions2D,
    LearnedPositions2D,
    RotaryPositions2D,
    SinusoidalPositions2D,
)
from transformers_hw.transformer import (
    Encoder,
    FeedForward,
    LayerConfig,
    LayerOptions,
    SwiGLU,
)
from transformers_hw.transformer.config import Network, split_options
from transformers_hw.transformer.parts import norm_of
from transformers_hw.vision_transformer.patches import (
    PatchEmbedding,
    Size,
    grid_of,
)
from transformers_hw.vision_transformer.pooling import AttentionPooling

Pool = Literal["class", "mean", "attention"]
Pooler = Literal["norm", "tanh"] | None
Positions = Literal["learned", "axial", "sinusoidal", "none"]

# Width, depth and heads; hidden layers are four times as wide as tokens.
SIZES = {
    "Ti": (192, 12, 3),
    "S": (384, 12, 6),
    "B": (768, 12, 12),
    "L": (1024, 24, 16),
    "H": (1280, 32, 16),
}

# Sizes of parts that a model may have or not.
OPTIONAL_SIZES = ("num_classes", "pool_heads", "pool_hidden_dim")


class TokenOptions(LayerOptions, total=False):
    """The keywords for tokens, positions and norms beyond those of the paper.

    Attributes:
        registers: Number of register tokens: learned tokens after the class token,
            without a position, that no head reads; none by default.
        class_position: Whether the class token has a position embedding of its own,
            the default; models with registers often have one for patches only.
        patch_bias: Whether the patch embedding has a bias, the default.
        rotary: Keywords of [`RotaryPositions2D`
            ][transformers_hw.positional_encoding.RotaryPositions2D], `{}` for its
            defaults, to rotate queries and keys by the positions of their patches,
            instead of `positions` or in addition to them; `None`, the default, for no
            rotation.
        embedding_norm: Whether a norm follows the embedding, before the first layer,
            as in CLIP; not by default.
        final_norm: Whether a norm follows the last layer; by default unless it is the
            pooler.
        pool_prefix: Whether a mean or attention pools the class token and the
            registers, too; only the patches by default.
        pool_heads: Number of heads of attention pooling; `heads` by default.
        pool_hidden_dim: Width of the hidden layer of attention pooling; `hidden_dim`
            by default.
    """

    registers: int
    class_position: bool
    patch_bias: bool
    rotary: Mapping[str, Any] | None
    embedding_norm: bool
    final_norm: bool | None
    pool_prefix: bool
    pool_heads: int | None
    pool_hidden_dim: int | None


class VisionTransformerOptions(TokenOptions, total=False):
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
    activation: Network = "gelu"
    eps: float = 1e-6
    registers: int = 0
    class_position: bool = True
    patch_bias: bool = True
    rotary: Mapping[str, Any] | None = None
    embedding_norm: bool = False
    final_norm: bool | None = None
    pool_prefix: bool = False
    pool_heads: int | None = None
    pool_hidden_dim: int | None = None

    def __post_init__(self) -> None:
        """Raise unless sizes are positive and patches divide images."""
        super().__post_init__()
        check_sizes(depth=self.depth, channels=self.channels)
        check_lengths(registers=self.registers)
        given = {name: getattr(self, name) for name in OPTIONAL_SIZES}
        check_sizes(**{name: x for name, x in given.items() if x is not None})
        if self.pool == "class" and not self.class_token:
            raise ValueError("pool 'class' needs a class token, got class_token=False.")
        grid_of(self.image_size, self.patch_size)
        if self.rotary is not None:
            if not isinstance(self.rotary, Mapping):
                raise TypeError(
                    "rotary must be a mapping of the keywords of RotaryPositions2D or "
                    f"None, got {self.rotary!r}."
                )
            # JSON has no tuples.
            plain = {
                name: tuple(x) if isinstance(x, list) else x
                for name, x in dict(self.rotary).items()
            }
            object.__setattr__(self, "rotary", plain)

    @property
    def prefix(self) -> int:
        """Number of tokens before those of the patches."""
        return self.class_token + self.registers


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
        pool: What the head reads: `"class"`, the class token; `"mean"`, the mean of
            the patches' tokens; or `"attention"`, what a learned query gathers from
            them
            ([`AttentionPooling`][transformers_hw.vision_transformer.AttentionPooling]).
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
            [`TokenOptions`][transformers_hw.vision_transformer.TokenOptions], such as
            `registers`, and of
            [`LayerOptions`][transformers_hw.transformer.LayerOptions]; here
            `activation` is `"gelu"` and `eps` $10^{-6}$ by default. `dropout` also
            acts on the tokens that enter the encoder.

    Raises:
        TypeError: If `rotary` is of another type.
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
        for the mean, D.4 for the positions; Darcet et al. (2024), [Vision Transformers
        Need Registers](https://arxiv.org/abs/2309.16588), section 3, for registers.
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
        **options: Unpack[TokenOptions],
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
        self.grid = grid_of(config.image_size, config.patch_size)
        self.patch_embedding = PatchEmbedding(
            patch_size, channels, dim, bias=config.patch_bias, **factory
        )
        self.positions = _positions(positions, self.grid, dim, factory)
        self.class_token = self.class_position = None
        if config.class_token:
            self.class_token = nn.Parameter(torch.empty(dim, **factory))
            if config.class_position and positions in ("learned", "axial"):
                self.class_position = nn.Parameter(torch.empty(dim, **factory))
        self.registers = None
        if config.registers:
            count = config.registers
            self.registers = nn.Parameter(torch.empty(count, dim, **factory))
        self.dropout = nn.Dropout(config.dropout)
        self.embedding_norm = self.rotary = self.attention_pooling = None
        if config.embedding_norm:
            self.embedding_norm = norm_of(config, **factory)
        if config.rotary is not None:
            head_dim = config.head_dim or dim // heads
            self.rotary = RotaryPositions2D(head_dim, **config.rotary)
        final_norm = config.final_norm
        if final_norm is None and pooler == "norm":
            final_norm = False
        layers = {**config.options, **factory}
        self.encoder = Encoder(*sizes, final_norm=final_norm, **layers)
        if pool == "attention":
            self.attention_pooling = AttentionPooling(
                dim,
                config.pool_heads or heads,
                config.pool_hidden_dim or config.hidden_dim,
                activation="gelu"
                if config.activation == "swiglu"
                else config.activation,
                dropout=config.dropout,
                eps=config.eps,
                **factory,
            )
        self.pooler = nn.Identity()
        if pooler == "norm":
            self.pooler = norm_of(config, **factory)
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
        for vector in (self.class_token, self.class_position, self.registers):
            if vector is not None:
                nn.init.trunc_normal_(vector, std=0.02)
        _reset_head(self.head)
        networks = [x for x in self.modules() if isinstance(x, FeedForward | SwiGLU)]
        for projection in (part for x in networks for part in x.children()):
            if isinstance(projection, nn.Linear):
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
        return self.head(self.pool(self.encode(images)))

    @checked
    def embed(
        self, images: Float[Tensor, "b {self.config.channels} height width"]
    ) -> Float[Tensor, "b n {self.config.dim}"]:
        """Return the tokens that enter the encoder: class token, registers, patches."""
        grid = self.positions(self.patch_embedding(images))
        tokens = rearrange(grid, "b rows columns d -> b (rows columns) d")
        if self.registers is not None:
            registers = repeat(self.registers, "r d -> b r d", b=tokens.shape[0])
            tokens = torch.cat([registers, tokens], dim=1)
        if self.class_token is not None:
            first = self.class_token
            if self.class_position is not None:
                first = first + self.class_position
            first = repeat(first, "d -> b 1 d", b=tokens.shape[0])
            tokens = torch.cat([first, tokens], dim=1)
        tokens = self.dropout(tokens)
        return tokens if self.embedding_norm is None else self.embedding_norm(tokens)

    @checked
    def encode(
        self, images: Float[Tensor, "b {self.config.channels} height width"]
    ) -> Float[Tensor, "b n {self.config.dim}"]:
        """Return every token as it leaves the encoder.

        Args:
            images: Images that the patch divides.

        Returns:
            The class token and the registers, if there are any, then the tokens of the
            patches, row by row.
        """
        return self.encoder(self.embed(images), rotary=self._rotation(images))

    @checked
    def intermediate_layers(
        self,
        images: Float[Tensor, "b {self.config.channels} height width"],
        indices: Sequence[int],
        *,
        norm: bool = False,
    ) -> list[Float[Tensor, "b n {self.config.dim}"]]:
        """Return every token as it leaves some of the layers.

        Tasks that need a feature for each position, such as segmentation and depth,
        read several layers. The first `config.prefix` tokens are the class token and
        the registers.

        Args:
            images: Images that the patch divides.
            indices: Numbers of the layers, from zero; negative ones count from the
                last.
            norm: Whether to apply the norm that follows the last layer to each.

        Returns:
            The tokens of these layers, in the order of `indices`.

        Raises:
            ValueError: If there is no such layer.

        Examples:
            >>> model = VisionTransformer(8, 4, num_classes=7, dim=6, depth=3, heads=2)
            >>> tokens = model.intermediate_layers(torch.randn(5, 3, 8, 8), [1, -1])
            >>> [tuple(x.shape) for x in tokens]
            [(5, 5, 6), (5, 5, 6)]
        """
        depth = len(self.encoder.layers)
        if any(isinstance(i, NOT_INTEGERS) or not -depth <= i < depth for i in indices):
            raise ValueError(
                f"indices must be integers from {-depth} to {depth - 1}, "
                f"got {list(indices)}."
            )
        wanted = [i % depth for i in indices]
        tokens, rotary = self.embed(images), self._rotation(images)
        leaving = {}
        for i in range(max(wanted, default=-1) + 1):
            tokens = self.encoder.layers[i](tokens, rotary=rotary)
            if i in wanted:
                leaving[i] = self.encoder.final_norm(tokens) if norm else tokens
        return [leaving[i] for i in wanted]

    def _rotation(self, images: Tensor) -> Callable[..., Tensor] | None:
        """Return what turns queries and keys by the positions of these patches."""
        if self.rotary is None:
            return None
        rotary, (i, j) = self.rotary, self.config.patch_size
        grid = (images.shape[2] // i, images.shape[3] // j)
        return lambda x, start=0: rotary(x, grid)

    @checked
    def pool(
        self, tokens: Float[Tensor, "b n {self.config.dim}"]
    ) -> Float[Tensor, "b {self.config.dim}"]:
        """Pool the tokens of each image into one vector, the input of the head.

        Args:
            tokens: Output of `encode`.

        Returns:
            The class token, the mean of the patches' tokens, or what attention gathers
            from them, after the pooler.
        """
        if self.config.pool == "class":
            return self.pooler(tokens[:, 0])
        if not self.config.pool_prefix:
            tokens = tokens[:, self.config.prefix :]
        if self.attention_pooling is not None:
            return self.pooler(self.attention_pooling(tokens))
        return self.pooler(reduce(tokens, "b n d -> b d", "mean"))

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
