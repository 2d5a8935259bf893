"""Loads the model of a command: from a file, or from a function that returns it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nobsp._messages import suggest
from nobsp.cli.console import UsageError, require_path
from nobsp.cli.options import ModelOptions

if TYPE_CHECKING:
    from torch import Tensor

_FACTORY = re.compile(r"(?P<module>[\w.]+|.+\.py):(?P<name>[\w.]+)")
# skops asks before it makes objects of these; they hold arrays and numbers, and run nothing.
_HARMLESS = {
    "numpy.dtype",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
}
_REASON = (
    "is a pickle, and reading a pickle can run any code its author put there. If you trust where it came from, add "
    "--trust-pickle; better, save the model with torch.export.save (networks) or skops.io.dump (scikit-learn)"
)

_WEIGHTS = "holds weights alone; pass --model package.module:factory --weights"


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model as it was loaded; `origin` says from what.

    `prepare` returns the model, given some rows or images with which an exported program is made a module;
    `feature_names` are the columns it was fitted on, where it knows.
    """

    name: str
    origin: str
    prepare: Callable[[Callable[[], Tensor]], Any]
    feature_names: tuple[str, ...] | None = None


def load_model(options: ModelOptions) -> Loaded:
    """Finds the model of --model."""
    given, weights, trust_pickle = options.model, options.weights, options.trust_pickle
    path = Path(given)
    if path.is_file():
        if weights is not None:
            raise UsageError("--weights goes with a factory, --model package.module:factory; a file has its own.")
        return _from_file(path, trust_pickle=trust_pickle)
    match = _FACTORY.fullmatch(given)
    if match is not None:
        return _from_factory(given, match["module"], match["name"], weights, trust_pickle=trust_pickle)
    if path.is_dir():
        raise UsageError(f"--model {given} is a folder; name a file, or package.module:factory.")
    require_path(path, "--model")
    raise UsageError(f"--model {given} is neither a file nor package.module:factory.")


def _from_file(path: Path, *, trust_pickle: bool) -> Loaded:
    from nobsp.network.exported import UntrustedError, as_module, kind_of, load_exported

    kind = kind_of(path)
    if kind == "exported":
        try:
            program = load_exported(path, trust_pickle=trust_pickle)
        except UntrustedError as untrusted:
            raise UsageError(f"--model {untrusted} If you trust where it came from, add --trust-pickle.") from untrusted
        return Loaded(path.stem, "exported program", lambda example: as_module(program, example()))
    if kind == "skops":
        return _as_loaded(path.stem, "skops file", _from_skops(path, trust_pickle=trust_pickle))
    if kind == "safetensors":
        raise UsageError(f"--model {path} {_WEIGHTS} {path}.")
    if kind == "pickle":
        return _as_loaded(path.stem, "pickle", _from_pickle(path, trust_pickle=trust_pickle))
    if kind == "script" or path.suffix == ".onnx":
        raise UsageError(f"--model {path}: TorchScript and ONNX are not read; save the model with torch.export.save.")
    raise UsageError(
        f"--model {path} is no model this command reads: torch.export (.pt2) or skops. Or name a function that returns "
        "the model, package.module:function."
    )


def _from_skops(path: Path, *, trust_pickle: bool) -> Any:
    try:
        import skops.io
    except ImportError as missing:
        raise ImportError(f"{path} is a skops file, which needs skops: pip install skops.") from missing
    unknown = sorted(set(skops.io.get_untrusted_types(file=path)) - _HARMLESS)
    if unknown and not trust_pickle:
        raise UsageError(
            f"--model {path} holds objects that could run code when they are loaded: {', '.join(unknown)}. If you "
            "trust where it came from, add --trust-pickle."
        )
    return skops.io.load(path, trusted=[*unknown, *_HARMLESS])


def _from_pickle(path: Path, *, trust_pickle: bool) -> Any:
    import zipfile

    import torch

    made_by_torch = zipfile.is_zipfile(path)
    if made_by_torch and isinstance(_load_weights_only(path), dict):
        raise UsageError(f"--model {path} {_WEIGHTS} {path}.")
    if not trust_pickle:
        raise UsageError(f"--model {path} {_REASON}.")
    if made_by_torch:
        return torch.load(path, map_location="cpu", weights_only=False)  # the person said so
    return importlib.import_module("joblib").load(path)


def _load_weights_only(path: Path) -> Any:
    """What torch.save wrote, where it is tensors and containers; else None."""
    import pickle

    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, TypeError, AttributeError):
        return None


def _from_factory(given: str, module: str, name: str, weights: Path | None, *, trust_pickle: bool) -> Loaded:
    import torch

    made: Any = _import_module(given, module)
    for part in name.split("."):
        if not hasattr(made, part):
            known = [entry for entry in dir(made) if not entry.startswith("_")]
            raise UsageError(f"--model {given}: {module} has no {part!r}; {suggest(part, known)}")
        made = getattr(made, part)
    is_model = isinstance(made, torch.nn.Module) or (hasattr(made, "get_params") and not isinstance(made, type))
    if callable(made) and not is_model:
        made = made()
    if weights is not None:
        _load_weights(made, weights, trust_pickle=trust_pickle)
    return _as_loaded(name.rpartition(".")[2], "factory", made)


def _import_module(given: str, module: str) -> Any:
    """A module by its name, the current folder included, or a file of Python."""
    if module.endswith(".py"):
        path = Path(module)
        require_path(path, "--model")
        spec: Any = importlib.util.spec_from_file_location(path.stem, path)
        found = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, found)
        spec.loader.exec_module(found)
        return found
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is None or not (module == missing.name or module.startswith(f"{missing.name}.")):
            raise  # it is there, and needs something that is not
        raise UsageError(f"--model {given}: there is no module {missing.name!r} here or installed.") from missing


def _load_weights(model: Any, path: Path, *, trust_pickle: bool) -> None:
    import torch

    from nobsp.network.exported import kind_of

    require_path(path, "--weights")
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"--weights is for torch modules; the factory made a {type(model).__name__}.")
    if kind_of(path) == "safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            state: Any = load_file(path)
        except SafetensorError as damaged:
            raise ValueError(f"--weights {path} is damaged ({damaged}).") from damaged
    else:
        state = _load_weights_only(path)
        if state is None and not trust_pickle:
            raise UsageError(f"--weights {path} {_REASON.partition('; better')[0]}; better, save them as safetensors.")
        if state is None:
            state = torch.load(path, map_location="cpu", weights_only=False)  # the person said so
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]  # as trainers keep it
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as failure:
        text = " ".join(str(failure).split())
        raise ValueError(f"--weights {path} does not fit the model: {text[:400]}") from failure


def _as_loaded(name: str, origin: str, model: Any) -> Loaded:
    names = getattr(model, "feature_names_in_", None)
    return Loaded(name, origin, lambda _: model, None if names is None else tuple(str(column) for column in names))


@contextmanager
def add_hint(hint: str) -> Iterator[None]:
    """Adds a hint to the errors of a model that could not be run; what else is wrong says so itself."""
    try:
        yield
    except (ValueError, RuntimeError) as failure:
        ran_into = failure.__cause__ if isinstance(failure, ValueError) else failure
        if not isinstance(ran_into, RuntimeError | IndexError | TypeError):
            raise
        text = " ".join(str(failure).split()).rstrip(".")
        raise ValueError(f"{text}. {hint}") from failure
