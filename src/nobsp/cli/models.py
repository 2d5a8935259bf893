"""The model a command is about: from a file, or from a function that makes it."""

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

from nobsp.cli.console import Misuse, close_to

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


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model as it was loaded.

    Attributes:
        name: What to call it.
        origin: What kind of thing it came from, in words.
        ready: Hands out the model, given some rows or images as it takes them, of which closed models are opened.
        feature_names: Columns it was fitted on, where it knows.
        takes_numbers: Whether it takes numbers alone; a pipeline may make them of words and gaps.
    """

    name: str
    origin: str
    ready: Callable[[Callable[[], Tensor]], Any]
    feature_names: tuple[str, ...] | None = None
    takes_numbers: bool = True


def load_model(given: str, *, weights: Path | None, trust_pickle: bool) -> Loaded:
    """Finds the model of `--model`."""
    path = Path(given)
    if path.is_file():
        if weights is not None:
            raise Misuse("--weights goes with a factory, --model package.module:factory; a file has its own.")
        return _from_file(path, trust_pickle=trust_pickle)
    match = _FACTORY.fullmatch(given)
    if match is not None:
        return _from_factory(given, match["module"], match["name"], weights, trust_pickle=trust_pickle)
    if path.is_dir():
        raise Misuse(f"--model {given} is a folder; name a file, or package.module:factory.")
    beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = f"; {close_to(path.name, beside)}" if beside and "did you" in close_to(path.name, beside) else ""
    raise Misuse(f"--model {given}: there is no such file{hint or '; name a file, or package.module:factory.'}")


# ---------------------------------------------------------------------- files


def _from_file(path: Path, *, trust_pickle: bool) -> Loaded:
    from nobsp.network.exported import UntrustedError, kind_of, load_exported, opened

    kind = kind_of(path)
    if kind == "exported":
        try:
            program = load_exported(path, trust_pickle=trust_pickle)
        except UntrustedError as untrusted:
            raise Misuse(f"--model {untrusted} If you trust where it came from, add --trust-pickle.") from untrusted
        return Loaded(path.stem, "exported program", lambda example: opened(program, example()))
    if kind == "script":
        raise Misuse(f"--model {path}: TorchScript files are not read; export the model with torch.export.save.")
    if kind == "skops":
        return _given(path.stem, "skops file", _from_skops(path, trust_pickle=trust_pickle))
    if kind == "safetensors":
        raise Misuse(f"--model {path} holds weights alone; pass --model package.module:factory --weights {path}.")
    if kind == "pickle":
        return _given(path.stem, "pickle", _from_pickle(path, trust_pickle=trust_pickle))
    if path.suffix == ".onnx":
        raise Misuse(f"--model {path}: ONNX files are not read; export the model with torch.export.save.")
    raise Misuse(
        f"--model {path} is no model this command reads: torch.export (.pt2) or skops. Or name a "
        "function that makes the model, package.module:factory."
    )


def _from_skops(path: Path, *, trust_pickle: bool) -> Any:
    try:
        import skops.io
    except ImportError as missing:
        raise ImportError(f"{path} is a skops file, which needs skops: pip install skops.") from missing
    unknown = sorted(set(skops.io.get_untrusted_types(file=path)) - _HARMLESS)
    if unknown and not trust_pickle:
        raise Misuse(
            f"--model {path} holds objects that could run code when they are loaded: {', '.join(unknown)}. If you "
            "trust where it came from, add --trust-pickle."
        )
    return skops.io.load(path, trusted=[*unknown, *_HARMLESS])


def _from_pickle(path: Path, *, trust_pickle: bool) -> Any:
    import zipfile

    import torch

    made_by_torch = zipfile.is_zipfile(path)
    if made_by_torch and isinstance(_plain(path), dict):
        raise Misuse(f"--model {path} holds weights alone; pass --model package.module:factory --weights {path}.")
    if not trust_pickle:
        raise Misuse(f"--model {path} {_REASON}.")
    if made_by_torch:
        return torch.load(path, map_location="cpu", weights_only=False)  # the person said so
    return importlib.import_module("joblib").load(path)


def _plain(path: Path) -> Any:
    """What torch.save wrote, where it is tensors and containers; else None."""
    import pickle

    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, TypeError, AttributeError):
        return None


# ---------------------------------------------------------------------- factories


def _from_factory(given: str, module: str, name: str, weights: Path | None, *, trust_pickle: bool) -> Loaded:
    made: Any = _imported(given, module)
    for part in name.split("."):
        if not hasattr(made, part):
            known = [entry for entry in dir(made) if not entry.startswith("_")]
            raise Misuse(f"--model {given}: {module} has no {part!r}; {close_to(part, known)}")
        made = getattr(made, part)
    if callable(made) and not _is_model(made):
        made = made()
    if weights is not None:
        _load_weights(made, weights, trust_pickle=trust_pickle)
    return _given(name.rpartition(".")[2], "factory", made)


def _imported(given: str, module: str) -> Any:
    """A module by its name, the current folder included, or a file of Python."""
    if module.endswith(".py"):
        path = Path(module)
        if not path.is_file():
            raise Misuse(f"--model {given}: there is no file {module}.")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
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
        raise Misuse(
            f"--model {given}: there is no module {missing.name!r}, neither in this folder nor installed."
        ) from missing


def _is_model(made: Any) -> bool:
    import torch

    return isinstance(made, torch.nn.Module) or (hasattr(made, "get_params") and not isinstance(made, type))


def _load_weights(model: Any, path: Path, *, trust_pickle: bool) -> None:
    import torch

    from nobsp.network.exported import kind_of

    if not path.is_file():
        raise Misuse(f"--weights {path}: there is no such file.")
    if not isinstance(model, torch.nn.Module):
        raise Misuse(f"--weights is for torch modules; the factory made a {type(model).__name__}.")
    if kind_of(path) == "safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            state: Any = load_file(path)
        except SafetensorError as damaged:
            raise ValueError(f"--weights {path} is damaged ({damaged}).") from damaged
    else:
        state = _plain(path)
        if state is None and not trust_pickle:
            raise Misuse(f"--weights {path} {_REASON.partition('; better')[0]}; better, save them as safetensors.")
        if state is None:
            state = torch.load(path, map_location="cpu", weights_only=False)  # the person said so
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]  # as trainers keep it
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as failure:
        said = " ".join(str(failure).split())
        raise ValueError(f"--weights {path} does not fit the model: {said[:400]}") from failure


def _given(name: str, origin: str, model: Any) -> Loaded:
    names = getattr(model, "feature_names_in_", None)
    known = None if names is None else tuple(str(column) for column in names)
    return Loaded(name, origin, lambda _: model, known, takes_numbers=not hasattr(model, "get_params"))


# ---------------------------------------------------------------------- running it


@contextmanager
def hinting(hint: str) -> Iterator[None]:
    """Adds a hint to the errors of a model that could not be run; what else is wrong says so itself."""
    try:
        yield
    except (ValueError, RuntimeError) as failure:
        ran_into = failure.__cause__ if isinstance(failure, ValueError) else failure
        if not isinstance(ran_into, RuntimeError | IndexError | TypeError):
            raise
        said = " ".join(str(failure).split()).rstrip(".")
        raise ValueError(f"{said}. {hint}") from failure


@contextmanager
def limited_threads(count: int | None) -> Iterator[None]:
    """Lets torch use so many threads, and as many as before afterwards; None leaves it alone."""
    import torch

    before = torch.get_num_threads()
    if count is not None and count < 1:
        raise Misuse(f"--threads must be at least 1, found {count}.")
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
