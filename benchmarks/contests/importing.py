"""How long a library takes to import, PyTorch included."""

import subprocess
import sys
from collections.abc import Callable, Iterator

from measuring import Pair, Row

PEERS = {
    "torchvision": "from torchvision.models import VisionTransformer",
    "timm": "from timm.models import VisionTransformer",
    "vit-pytorch": "from vit_pytorch import ViT",
    "Hugging Face": "from transformers import ViTForImageClassification",
}


def rows() -> Iterator[Row]:
    """Give all comparisons."""
    for peer, statement in PEERS.items():
        build = _imports(statement)
        what = "its Vision Transformer, PyTorch included"
        yield Row("Import", what, peer, "import", build)


def _imports(statement: str) -> Callable[[], Pair]:
    def run(line: str) -> Callable[[], None]:
        def work() -> None:
            subprocess.run([sys.executable, "-c", line], check=True)

        return work

    ours = "from transformers_hw import VisionTransformer"
    return lambda: Pair(run(ours), run(statement), memory=False)
