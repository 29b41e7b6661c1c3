r"""Attention as convolution: the theorem, as exact and fast software.

Give attention nothing but positions to look at, and let the score of a key fall with
the square of its distance from some spot beside the query. A head is then a Gaussian
window at that spot; as it sharpens, it becomes a shift; and shifts, each with a matrix
of its own, add up to a convolution. So *a layer of $K^2$ heads can express any
convolution with a $K \times K$ kernel* (Cordonnier, Loukas & Jaggi, 2020).

This chapter makes that sentence run:

1. [`GaussianSelfAttention`
   ][transformers_hw.attention_as_convolution.GaussianSelfAttention] is the layer. Its
   weights factorise exactly into rows and columns.
2. [`attention_from_convolution`
   ][transformers_hw.attention_as_convolution.attention_from_convolution] and
   [`attentionize`][transformers_hw.attention_as_convolution.attentionize] turn any
   convolution, and any model of them, into attention with the same outputs.
3. [`fewest_heads`][transformers_hw.attention_as_convolution.fewest_heads]: how many
   heads are really needed is the rank of the taps, or one more.
4. [`convolution_from_attention`
   ][transformers_hw.attention_as_convolution.convolution_from_attention] goes back,
   with a bound on the error.
5. The assignment's program, up to a
   [`PictureBert`][transformers_hw.attention_as_convolution.PictureBert] that learns
   where its heads should look.

The theorem says what attention *can express*. It does not say that training finds it.
"""

from transformers_hw.attention_as_convolution.assignment import (
    AbsolutePositionalEmbedding,
    BertFFN,
    RelativePositionalEmbedding,
    verify_limit,
    visualize_abs_positional_embedding,
    visualize_rel_positional_embedding,
)
from transformers_hw.attention_as_convolution.conversion import (
    ConvolutionAsAttention,
    ConvolutionAxis,
    attention_from_convolution,
    attentionize,
)
from transformers_hw.attention_as_convolution.effective import (
    EffectiveConvolution,
    convolution_from_attention,
    effective_kernel,
)
from transformers_hw.attention_as_convolution.gaussian import GaussianSelfAttention
from transformers_hw.attention_as_convolution.mixing import (
    mix_densely,
    mix_separably,
    mix_shifted,
)
from transformers_hw.attention_as_convolution.picture_bert import (
    LearnedRelativeSelfAttention,
    PictureBert,
    PictureBertLayer,
)
from transformers_hw.attention_as_convolution.relative_table import (
    RelativeTableAttention,
    fewest_heads,
)

__all__ = [
    "AbsolutePositionalEmbedding",
    "BertFFN",
    "ConvolutionAsAttention",
    "ConvolutionAxis",
    "EffectiveConvolution",
    "GaussianSelfAttention",
    "LearnedRelativeSelfAttention",
    "PictureBert",
    "PictureBertLayer",
    "RelativePositionalEmbedding",
    "RelativeTableAttention",
    "attention_from_convolution",
    "attentionize",
    "convolution_from_attention",
    "effective_kernel",
    "fewest_heads",
    "mix_densely",
    "mix_separably",
    "mix_shifted",
    "verify_limit",
    "visualize_abs_positional_embedding",
    "visualize_rel_positional_embedding",
]
