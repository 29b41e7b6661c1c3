"""Patches: an image as a grid of tokens."""

from typing import Unpack

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from transformers_hw._engine.arguments import (
    Factory,
    check_sizes,
    height_and_width,
)
from transformers_hw._engine.shapes import checked

Size = int | tuple[int, int]


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
        bias: Whether to learn $b$.
        **factory: `device` and `dtype` of the parameters.

    Raises:
        ValueError: If a size is not positive.

    Examples:
        >>> import torch
        >>> embedding = PatchEmbedding((4, 2), channels=3, dim=5)
        >>> embedding(torch.randn(1, 3, 8, 6)).shape
        torch.Size([1, 2, 3, 5])

    References:
        Dosovitskiy et al. (2021), [An Image is Worth 16x16 Words
        ](https://arxiv.org/abs/2010.11929), section 3.1, equation 1.
    """

    @checked
    def __init__(
        self,
        patch_size: Size,
        channels: int,
        dim: int,
        *,
        bias: bool = True,
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__()
        self.patch_size = height_and_width("patch_size", patch_size)
        check_sizes(channels=channels, dim=dim)
        self.channels = channels
        pixels = channels * self.patch_size[0] * self.patch_size[1]
        self.proj = nn.Linear(pixels, dim, bias=bias, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights that preserve the variance of the pixels; zero the bias."""
        nn.init.trunc_normal_(self.proj.weight, std=self.proj.in_features**-0.5)
        if self.proj.bias is not None:
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
        grid_of((images.shape[2], images.shape[3]), self.patch_size)
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
            >>> import torch
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
            bias=self.proj.bias is not None,
            device=weight.device,
            dtype=weight.dtype,
        )
        kernel = rearrange(weight, "d (c i j) -> d c i j", i=i, j=j)
        convolution.load_state_dict({**self.proj.state_dict(), "weight": kernel})
        return convolution

    def extra_repr(self) -> str:
        """Show the patch size in `repr`."""
        return f"patch_size={self.patch_size}, channels={self.channels}"


def grid_of(image: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
    """Return rows and columns of patches; raise unless they tile the image."""
    (height, width), (i, j) = image, patch
    if height < 1 or width < 1 or height % i or width % j:
        raise ValueError(
            "the patch must divide the image, "
            f"got a patch of {i}×{j} and an image of {height}×{width} pixels."
        )
    return height // i, width // j
