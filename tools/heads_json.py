"""Write where the heads of chapter 8's model were, for the page that replays them.

    python tools/heads_json.py

The record is the one that `examples/attention_as_convolution.py` writes for its part
`heads`.
"""

import json
from pathlib import Path

from safetensors.numpy import load_file

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "docs/figures/attention_as_convolution/heads"
WRITTEN = ROOT / "docs/explorables/heads.json"


def trail() -> dict[str, object]:
    """Return the heads: for each frame and layer, row, column and spread in tokens."""
    run = json.loads((RECORD / "run.json").read_text("utf-8"))
    heads = load_file(RECORD / "results.safetensors")["heads"]
    return {
        "side": run["data"]["image"][1] // run["config"]["patch_size"],
        "heads": heads.astype(float).round(3).tolist(),
    }


if __name__ == "__main__":
    WRITTEN.write_text(json.dumps(trail(), separators=(",", ":")) + "\n", "utf-8")
