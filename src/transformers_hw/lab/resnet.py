"""A small residual network, to compare models of attention with."""

from collections.abc import Sequence

from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """Two 3 × 3 convolutions with a shortcut around them."""

    def __init__(self, channels: int, output_channels: int, *, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, output_channels, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(output_channels),
            nn.ReLU(),
            nn.Conv2d(output_channels, output_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(output_channels),
        )
        self.shortcut = nn.Identity()
        if channels != output_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, output_channels, 1, stride, bias=False),
                nn.BatchNorm2d(output_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Add the convolutions' output to the shortcut."""
        return (self.shortcut(x) + self.convolutions(x)).relu()


def small_resnet(
    channels: int, num_classes: int, *, widths: Sequence[int], blocks: int = 1
) -> nn.Sequential:
    """Return a ResNet for small images.

    Its children are the stem, one stage for each width, pooling, and the classifier.
    Each stage but the first halves the resolution.

    Args:
        channels: Channels of an image.
        num_classes: Number of classes.
        widths: Channels of each stage.
        blocks: Residual blocks in each stage.

    Examples:
        >>> import torch
        >>> small_resnet(3, 10, widths=(4, 8))(torch.zeros(2, 3, 9, 9)).shape
        torch.Size([2, 10])

    References:
        He et al. (2016), [Deep Residual Learning for Image Recognition
        ](https://arxiv.org/abs/1512.03385), section 4.2.
    """
    stem = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
    stages = [nn.Sequential(stem, nn.BatchNorm2d(widths[0]), nn.ReLU())]
    for number, width in enumerate(widths):
        first = ResidualBlock(
            widths[max(0, number - 1)], width, stride=2 if number else 1
        )
        more = (ResidualBlock(width, width, stride=1) for _ in range(blocks - 1))
        stages.append(nn.Sequential(first, *more))
    pooling = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*stages, *pooling, nn.Linear(widths[-1], num_classes))
