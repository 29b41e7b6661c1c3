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

The files, in the order of reading: `patches` (images cut into tokens), `model` (the
Vision Transformer and its settings), `pooling` (a learned query in place of a class
token), and `preprocessing` (from a photograph to the model's input).
"""

from transformers_hw.vision_transformer.model import (
    SIZES,
    Pool,
    Pooler,
    Positions,
    TokenOptions,
    VisionTransformer,
    VisionTransformerConfig,
    VisionTransformerOptions,
)
from transformers_hw.vision_transformer.patches import PatchEmbedding, Size
from transformers_hw.vision_transformer.pooling import AttentionPooling
from transformers_hw.vision_transformer.preprocessing import Preprocessing

__all__ = [
    "SIZES",
    "AttentionPooling",
    "PatchEmbedding",
    "Pool",
    "Pooler",
    "Positions",
    "Preprocessing",
    "Size",
    "TokenOptions",
    "VisionTransformer",
    "VisionTransformerConfig",
    "VisionTransformerOptions",
]
