"""Models on the Hugging Face Hub, and in folders as the Hub has them."""

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from transformers_hw._engine.shapes import checked
from transformers_hw.pretrained.saving import (
    MODELS,
    check_described,
    load_model,
    save_model,
)
from transformers_hw.pretrained.weights import WeightsError

FILE, SETTINGS = "model.safetensors", "config.json"


@checked
def with_hub(model: nn.Module | type[nn.Module]) -> Any:
    """Give a model of the book the methods of the Hugging Face Hub.

    The methods are those of `huggingface_hub.ModelHubMixin`:

    - `save_pretrained(folder)` writes `model.safetensors`, as
      [`save_model`][transformers_hw.pretrained.save_model] does, a `config.json` for
      people to read, and a model card;
    - `push_to_hub(repo_id)` uploads the same;
    - `from_pretrained(folder or repo_id)`, of the class, loads the model. Weights and
      settings come from the file that
      [`load_model`][transformers_hw.pretrained.load_model] reads; huggingface_hub
      also opens `config.json`, and whatever is wrong with that is its error.

    Args:
        model: A model, such as a `VisionTransformer`, or its class.

    Returns:
        A subclass with these methods; or, given a model, one of that class that shares
        its weights.

    Raises:
        ImportError: If huggingface_hub is not installed.
        TypeError: If `model` is not one of the book's.
        ValueError: If its config does not describe it, as in
            [`save_model`][transformers_hw.pretrained.save_model].

    Examples:
        ```python
        with_hub(model).push_to_hub("me/my-vit")
        model = with_hub(VisionTransformer).from_pretrained("me/my-vit")
        ```
    """
    plain = model if isinstance(model, type) else type(model)
    if MODELS.get(plain.__name__) is not plain:
        known = ", ".join(MODELS)
        raise TypeError(f"model must be one of {known}, got {plain.__name__}.")
    found = _hub_class(plain)
    return found if isinstance(model, type) else _rebuilt(found, model)


@cache
def _hub_class(plain: type[nn.Module]) -> type[nn.Module]:
    """Return the subclass of a model that has the methods."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError(
            "the Hugging Face Hub needs huggingface_hub: pip install huggingface_hub"
        ) from error

    class OnHub(plain, huggingface_hub.ModelHubMixin, library_name="transformers_hw"):  # type: ignore[misc, valid-type]
        def _save_pretrained(self: Any, save_directory: Path) -> None:
            save_model(_rebuilt(plain, self), save_directory / FILE)
            settings = {"model": plain.__name__, **asdict(self.config)}
            text = json.dumps(settings, indent=1)
            (save_directory / SETTINGS).write_text(f"{text}\n", "utf-8")

        @classmethod
        def _from_pretrained(
            cls,
            *,
            model_id: str,
            revision: str | None,
            cache_dir: str | Path | None,
            force_download: bool,
            local_files_only: bool,
            token: str | bool | None,
            **_: Any,
        ) -> Any:
            path = Path(model_id) / FILE
            if not path.parent.is_dir():
                path = huggingface_hub.hf_hub_download(
                    model_id,
                    FILE,
                    revision=revision,
                    cache_dir=cache_dir,
                    force_download=force_download,
                    local_files_only=local_files_only,
                    token=token,
                )
            found = load_model(path)
            if type(found) is not plain:
                raise WeightsError(
                    f"{path} must hold a {plain.__name__}, got a "
                    f"{type(found).__name__}."
                )
            return _rebuilt(cls, found)

    OnHub.__name__ = OnHub.__qualname__ = plain.__name__
    return OnHub


def _rebuilt(kind: type[nn.Module], model: Any) -> Any:
    """Build a model again as one of another class, with the same weights."""
    found = kind(**asdict(model.config), device="meta")
    check_described(model, found)
    found.load_state_dict(model.state_dict(), assign=True)
    return found.train(model.training)
