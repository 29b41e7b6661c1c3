"""How long a library takes to import, PyTorch included."""

import subprocess
import sys
from collections.abc import Callable, Iterator

from measuring import Pair, Row

OURS = "from transformers_hw import VisionTransformer"
PEERS = {
    "torchvision": "from torchvision.models import VisionTransformer",
    "timm": "from timm.models import VisionTransformer",
    "vit-pytorch": "from vit_pytorch import ViT",
    "Hugging Face": "from transformers import ViTForImageClassification",
}


def rows() -> Iterator[Row]:
    """Yield all comparisons."""
    for peer, statement in PEERS.items():
        case = "import of a Vision Transformer"
        yield Row("import_time", case, peer, "import", _imports(statement))


def _imports(statement: str) -> Callable[[], Pair]:
    def run(line: str) -> Callable[[], None]:
        def work() -> None:
            subprocess.run([sys.executable, "-c", line], check=True)

        return work

    return lambda: Pair(run(OURS), run(statement))
