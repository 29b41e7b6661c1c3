"""Write elsewhere.inv: the names of other projects that the reference may link to.

    python bookbinding/inventory.py

The usual way downloads each project's whole inventory at every build. This site is
built offline, from these names. Add one where the build says it finds none.
"""

from pathlib import Path

from mkdocstrings import Inventory

TORCH = "https://docs.pytorch.org/docs/stable"
NAMES = {
    TORCH + "/generated/{name}.html#{name}": """
        torch.Generator torch.Size torch.compile torch.einsum torch.softmax
        torch.nn.Conv1d torch.nn.Conv2d torch.nn.CrossEntropyLoss torch.nn.Dropout
        torch.nn.Embedding torch.nn.GELU torch.nn.GRU torch.nn.LayerNorm torch.nn.Linear
        torch.nn.Module torch.nn.ModuleList torch.nn.MultiheadAttention torch.nn.RNN
        torch.nn.Sequential torch.nn.Softmax torch.nn.Transformer
        torch.nn.TransformerDecoderLayer torch.nn.TransformerEncoderLayer
        torch.nn.Unfold torch.nn.functional.gelu torch.nn.functional.layer_norm
        torch.nn.functional.pad torch.nn.functional.scaled_dot_product_attention
        torch.nn.functional.softmax torch.nn.functional.unfold
        torch.nn.parameter.Parameter
    """,
    TORCH + "/generated/torch.nn.parameter.Parameter.html": "torch.nn.Parameter",
    TORCH + "/tensors.html#{name}": "torch.Tensor",
    TORCH + "/tensor_attributes.html#{name}": "torch.device torch.dtype",
    "https://docs.kidger.site/jaxtyping/api/array/": """
        jaxtyping.Bool jaxtyping.Float jaxtyping.Int jaxtyping.Shaped
    """,
    "https://docs.python.org/3/library/exceptions.html#{name}": """
        IndexError KeyError RuntimeError TypeError ValueError
    """,
}

if __name__ == "__main__":
    inventory = Inventory(project="elsewhere", version="")
    for uri, names in NAMES.items():
        for name in names.split():
            address = uri.format(name=name)
            inventory.register(name=name, domain="py", role="data", uri=address)
    Path(__file__).with_name("elsewhere.inv").write_bytes(inventory.format_sphinx())
