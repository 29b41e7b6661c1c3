r"""Attention as convolution: the theorem, as exact and fast software.

Give attention nothing but positions to compare, and let the score of a key fall with
the square of its distance from a center beside the query. A head is then a Gaussian
window around that center; as it sharpens, it becomes a shift; and shifts, each with a
matrix of its own, add up to a convolution. So *a layer of $K^2$ heads can express any
convolution with a $K \times K$ kernel* (Cordonnier, Loukas & Jaggi, 2020). The theorem
says what attention *can express*. It does not say that training finds it.

Read the modules in this order:

1. `gaussian`: the layer, [`GaussianSelfAttention`
   ][transformers_hw.attention_as_convolution.GaussianSelfAttention]. Its weights
   factorize exactly into rows and columns.
2. `conversion`: the theorem. [`attention_from_convolution`
   ][transformers_hw.attention_as_convolution.attention_from_convolution] turns one
   convolution into attention with the same outputs, and [`attentionize`
   ][transformers_hw.attention_as_convolution.attentionize] all those of a model.
3. `effective`: the way back. [`convolution_from_attention`
   ][transformers_hw.attention_as_convolution.convolution_from_attention] approximates
   an attention layer by a convolution, with a bound on the error. Then `metrics`:
   [`head_metrics`][transformers_hw.attention_as_convolution.head_metrics] measures how
   close a layer is to a small convolution.
4. `assignment`: the encodings and plots that the assignment asks for by name.
5. `learned_relative` and `image_bert`: the paper's models. The heads of an [`ImageBert`
   ][transformers_hw.attention_as_convolution.ImageBert] learn where to attend.
6. `vit_weights` and `initialization`: the theorem used backwards. [`initialize`
   ][transformers_hw.attention_as_convolution.initialize] lets the heads of a Vision
   Transformer start as the shifts of a convolution.
7. `relative_table`, an appendix: the number of heads that a kernel needs is the rank of
   its taps, or one more ([`fewest_heads`
   ][transformers_hw.attention_as_convolution.fewest_heads]).
"""

from transformers_hw.attention_as_convolution.assignment import (
    AbsolutePositionalEmbedding,
    RelativePositionalEmbedding,
    verify_limit,
    visualize_abs_positional_embedding,
    visualize_rel_positional_embedding,
)
from transformers_hw.attention_as_convolution.conversion import (
    ConvolutionAxis,
    PaddedAttention,
    attention_from_convolution,
    attentionize,
)
from transformers_hw.attention_as_convolution.effective import (
    EffectiveConvolution,
    convolution_from_attention,
    effective_kernel,
)
from transformers_hw.attention_as_convolution.gaussian import GaussianSelfAttention
from transformers_hw.attention_as_convolution.image_bert import (
    BertFFN,
    ImageBert,
    ImageBertConfig,
    ImageBertLayer,
)
from transformers_hw.attention_as_convolution.initialization import (
    initialize,
    neighbor_offsets,
)
from transformers_hw.attention_as_convolution.learned_relative import (
    LearnedRelativeSelfAttention,
)
from transformers_hw.attention_as_convolution.metrics import (
    HeadMetrics,
    head_metrics,
)
from transformers_hw.attention_as_convolution.relative_table import (
    RelativeTableAttention,
    fewest_heads,
)

__all__ = [
    "AbsolutePositionalEmbedding",
    "BertFFN",
    "ConvolutionAxis",
    "EffectiveConvolution",
    "GaussianSelfAttention",
    "HeadMetrics",
    "ImageBert",
    "ImageBertConfig",
    "ImageBertLayer",
    "LearnedRelativeSelfAttention",
    "PaddedAttention",
    "RelativePositionalEmbedding",
    "RelativeTableAttention",
    "attention_from_convolution",
    "attentionize",
    "convolution_from_attention",
    "effective_kernel",
    "fewest_heads",
    "head_metrics",
    "initialize",
    "neighbor_offsets",
    "verify_limit",
    "visualize_abs_positional_embedding",
    "visualize_rel_positional_embedding",
]
