"""Any model as one torch module of one matrix: of other libraries, functions, and torch modules of several inputs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from nobsp.frames import match_columns
from nobsp.models.coded import Coded, Runs, linear
from nobsp.network.adapted import Adapted, MixedColumnsError, grouping_rows
from nobsp.network.inference import device_and_dtype, evaluation_mode
from nobsp.network.stand_in import unwrap
from nobsp.numerics import as_numpy

_OPENED = "nobsp.as_module(model, rows)"
# Rows that show whether an input is looked up as token ids are, and of which kinds that may be.
_PROBED = 16
_WHOLE = ("int32", "int64", torch.int32, torch.int64)


def adapt(model: Any, X: Any = None, *, layout: Mapping[str, Any] | None = None) -> Adapted:
    """Accepts a torch module, a fitted model of another library, or any function of rows.

    Args:
        model: A torch module; a fitted scikit-learn estimator, pipeline or search; a model of XGBoost, LightGBM,
            CatBoost, interpret or skorch; an onnxruntime session; or a function from a float64 array to an array.
        X: The rows it is to be run on, where there are any yet: they tell of names of levels, missing numbers and
            several inputs.
        layout: The layout of an earlier `adapt`, instead of the rows.

    Example:
        >>> import numpy as np
        >>> from sklearn.neural_network import MLPRegressor
        >>> from nobsp.models import adapt
        >>> X = np.random.default_rng(0).normal(size=(50, 2))
        >>> network = MLPRegressor(hidden_layer_sizes=(4,), max_iter=2000, tol=0.1).fit(X, X[:, 0])
        >>> adapt(network).module[2]
        Linear(in_features=4, out_features=1, bias=True)
    """
    room = type(model).__module__.partition(".")[0]
    if room == "skorch":
        if not getattr(model, "initialized_", False):
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(
                f"model is a {type(model).__name__} that has not been fitted; call its fit first."
            )
        found = adapt(model.module_, X, layout=layout)
        names = getattr(model, "classes_", None)
        return replace(found, output_names=None if names is None else tuple(map(str, names)))
    if isinstance(model, nn.Module):
        return _adapt_module(model, X, layout)
    if isinstance(model, torch.export.ExportedProgram | str | os.PathLike | Mapping | type):
        raise TypeError(_refusal(model))
    coded = None
    whole = False
    if layout is not None:
        whole = bool(layout.get("whole"))
        coded = Coded.from_layout(layout) if "levels" in layout else None
    elif X is not None:
        coded = Coded.of(X, missing=True)
    if room == "onnxruntime":
        from nobsp.models.estimators import adapt_session

        return adapt_session(model)
    if room in ("xgboost", "lightgbm", "catboost", "interpret") or hasattr(model, "get_params"):
        from nobsp.models.estimators import adapt_estimator, whole_pipeline

        estimator = adapt_estimator(model, coded)
        if estimator is not None:
            own = estimator.encode is not None and estimator.encode is not coded
            mixed = whole or (own and _mixes(model, estimator, X))
            return whole_pipeline(model, coded) if mixed else estimator
    if not callable(model):
        raise TypeError(_refusal(model))
    _require_one_argument(model)
    if coded is None:
        return Adapted(Runs(model))
    return Adapted(Runs(lambda x: model(coded.back(x))), encode=coded, layout=coded.layout)


def _require_one_argument(function: Any) -> None:
    """An error for a function that cannot be called with rows alone."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # functions written in C may not say what they take
        return
    try:
        signature.bind(None)
    except TypeError as failure:
        raise TypeError(
            f"model is a function that cannot be called with the rows alone ({failure})."
        ) from failure


def _mixes(model: Any, adapted: Adapted, X: Any) -> bool:
    """Whether the preprocessing mixes columns or leaves numbers missing, so that only the whole can be explained."""
    try:
        frame = nw.from_native(X, eager_only=True, pass_through=True)
        if isinstance(frame, nw.DataFrame):
            X = match_columns(frame, argument="X", columns=adapted.feature_names).to_native()
        elif not isinstance(X, np.ndarray) or X.ndim != 2:
            return False
        rows = grouping_rows(X)
        adapted.groups(rows)
        missing = adapted.encode is not None and bool(np.isnan(adapted.encode(rows)).any())
        return (
            missing and len(model.predict(rows)) > 0
        )  # which fails where the model does not take them
    except MixedColumnsError:
        return True
    except (ValueError, TypeError):
        return False  # whatever is wrong with the rows is said where they are read


def _refusal(model: Any) -> str:
    hint = ""
    if isinstance(model, torch.export.ExportedProgram | str | os.PathLike):
        hint = f" Pass {_OPENED} for a model or file of torch.export, with some rows; load any other first."
    elif isinstance(model, type):
        hint = " That is a class: pass a fitted model of it."
    elif isinstance(model, Mapping):
        hint = " Weights alone do not tell what is computed: load them into the model, model.load_state_dict(...)."
    return (
        "model must be a torch.nn.Module, a fitted model of scikit-learn, XGBoost, LightGBM, CatBoost, interpret or "
        f"skorch, an onnxruntime session, or a function from an array to an array; found {type(model).__name__}.{hint}"
    )


def _adapt_module(model: nn.Module, X: Any, layout: Mapping[str, Any] | None) -> Adapted:
    """A torch module, with its inputs side by side in one matrix where there are several."""
    module = Members(model) if type(unwrap(model)).__module__.partition(".")[0] == "tabm" else model
    if layout is not None and "inputs" in layout:
        return _packed(module, Packing.from_layout(layout))
    if layout is not None:
        stored = Coded.from_layout(layout, shares_unseen=True)
        return Adapted(module, encode=stored, layout=dict(layout))

    batch = None if X is None else _first_batch(unwrap(model), X)
    parts = _parts(unwrap(model), batch)
    if parts is not None:
        packing = Packing.of(parts)
        return _packed(
            module,
            packing,
            packing.matrix({name: part[:_PROBED] for name, part in dict(parts).items()}),
        )

    coded = None
    if X is not None and not isinstance(X, Tensor):
        coded = Coded.of(X, missing=False, text=False, shares_unseen=True)
    if coded is not None:
        return Adapted(module, encode=coded, layout=coded.layout)

    rows = batch[0] if isinstance(batch, tuple | list) and len(batch) == 1 else batch
    if isinstance(rows, Tensor | np.ndarray) and rows.ndim == 2 and rows.dtype in _WHOLE:
        whole = {"X": np.arange(rows.shape[1])}
        return Adapted(
            module,
            resolve=_Refusal(
                _find_tokens(module, torch.from_numpy(as_numpy(rows[:_PROBED]).copy()), whole)
            ),
        )

    return Adapted(module)


class _Lookups(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what is looked up in which table of embeddings, a column a lookup."""

    def __init__(self, rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows = rows
        self.found: dict[int, list[Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "embedding" in str(func) and len(args) > 1 and args[1].numel() % self.rows == 0:
            table, ids = args[:2]
            ids = ids.T if ids.ndim == 2 and len(ids) != self.rows else ids
            self.found.setdefault(table.data_ptr(), []).append(ids.reshape(self.rows, -1).cpu())
        return func(*args, **(kwargs or {}))


def _find_tokens(
    module: nn.Module, rows: Tensor, columns: Mapping[str, NDArray[np.intp]]
) -> tuple[str, int] | None:
    """The input that holds token ids and its positions: one table of embeddings looks several of them up alike.

    Categories that share a table have ranges of their own there.
    """
    device, _ = device_and_dtype(module)
    try:
        with evaluation_mode(module) as run, _Lookups(len(rows)) as seen:
            run(rows.to(device))
    except Exception:  # noqa: BLE001 - whatever is wrong with the rows is said where they are read
        return None

    for name, places in columns.items():
        # some of them tell
        ids = rows[:, torch.from_numpy(places.ravel())[:: 1 + len(places) // 64]].long()
        varying = (ids != ids[0]).any(0) if len(ids) else torch.zeros(0)
        for lookups in seen.found.values():
            shifts = torch.cat(lookups, 1)[:, :, None] - ids[:, None]
            where, position = ((shifts == shifts[0]).all(0) & varying).nonzero().T
            for shift in set(shifts[0, where, position].tolist()):
                alike = ids[
                    :, sorted(set(position[shifts[0, where, position] == shift].tolist()))
                ].numpy()
                if len(np.unique(alike)) < sum(len(np.unique(column)) for column in alike.T):
                    return name, len(places)

    return None


@dataclass(frozen=True)
class _Refusal:
    """Passes features on, and refuses to take each position of token ids for one."""

    tokens: tuple[str, int] | None
    packing: Packing | None = None

    def __call__(self, features: Any) -> Any:
        if self.tokens is not None and features is None:
            name, positions = self.tokens
            raise ValueError(
                f"{name} holds token ids at {positions} positions, and what a position means changes from text to "
                "text: they are not features. Pass spans of positions that mean the same in every text, features={"
                "'first': [0, 1, 2, 3], ...} or, of an input with a name, {'first': ('input_ids', slice(0, 8)), ...}; "
                "a list of names where each position does mean the same, as answers to questions do; or explain a "
                "function of features of your own."
            )
        return features if self.packing is None else self.packing.resolve(features)


class Input(NamedTuple):
    """One of several inputs: its name, and shape and kind of one row."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Packing:
    """Several inputs as columns of one matrix, and back."""

    def __init__(self, inputs: Sequence[Input], kind: str) -> None:
        self.inputs = tuple(inputs)
        self.kind = kind
        self.columns: dict[str, NDArray[np.intp]] = {}
        start = 0
        for one in inputs:
            stop = start + int(np.prod(one.shape))
            self.columns[one.name] = np.arange(start, stop).reshape(one.shape)
            start = stop

    @classmethod
    def of(cls, parts: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> Packing:
        """What some rows of several inputs need."""
        tensors = {name: torch.as_tensor(part) for name, part in dict(parts).items()}
        lengths = {name: len(part) for name, part in tensors.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"X has inputs of different lengths: {lengths}.")
        inputs = [
            Input(k, tuple(x.shape[1:]), str(x.dtype).removeprefix("torch."))
            for k, x in tensors.items()
        ]
        return cls(inputs, "kwargs" if isinstance(parts, Mapping) else "args")

    @property
    def layout(self) -> dict[str, Any]:
        """What `Packing.from_layout` makes the same again from."""
        return {"inputs": [list(one) for one in self.inputs], "kind": self.kind}

    @classmethod
    def from_layout(cls, layout: Mapping[str, Any]) -> Packing:
        """The same as the one whose layout it is."""
        return cls(
            [Input(name, tuple(shape), dtype) for name, shape, dtype in layout["inputs"]],
            layout["kind"],
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the matrix's columns."""
        return tuple(
            f"{one.name}[{','.join(map(str, place))}]" if place else one.name
            for one in self.inputs
            for place in np.ndindex(*one.shape)
        )

    @property
    def codes(self) -> tuple[int, ...]:
        """Columns of inputs that hold whole numbers."""
        whole = [
            self.columns[one.name].ravel()
            for one in self.inputs
            if one.dtype.startswith(("int", "uint"))
        ]
        return tuple(np.concatenate([np.zeros(0, np.intp), *whole]).tolist())

    def pack(self, X: Any) -> Any:
        """Rows of all inputs as a matrix; a loader as one of such matrices."""
        if isinstance(X, Tensor | np.ndarray) or hasattr(X, "columns"):
            raise TypeError(
                f"X is one table, but the model takes the inputs {[one.name for one in self.inputs]}."
            )
        shapes = (
            [tuple(part.shape[1:]) if hasattr(part, "shape") else None for part in X]
            if type(X) is tuple
            else []
        )
        if isinstance(X, Mapping) or shapes[: len(self.inputs)] == [
            one.shape for one in self.inputs
        ]:
            return self.matrix(X)
        return _Stream(X, self)

    def matrix(self, X: Any) -> Tensor:
        """Rows of all inputs side by side; labels after them are left aside."""
        parts = (
            X
            if isinstance(X, Mapping)
            else dict(zip((one.name for one in self.inputs), X, strict=False))
        )
        columns = []
        for one in self.inputs:
            if one.name not in parts:
                raise ValueError(f"X lacks the input {one.name!r}; it has {list(parts)}.")
            tensor = torch.as_tensor(parts[one.name]).detach().cpu()
            if tuple(tensor.shape[1:]) != one.shape:
                expected = ("rows", *one.shape)
                raise ValueError(
                    f"X has input {one.name!r} of shape {tuple(tensor.shape)}; expected {expected}."
                )
            columns.append(tensor.reshape(len(tensor), -1).to(torch.float64))
        return torch.cat(columns, 1)

    def unpack(self, matrix: Tensor) -> list[Tensor]:
        """The inputs of some rows of the matrix, each of its own shape and kind."""
        found = []
        for one in self.inputs:
            part = matrix[:, torch.from_numpy(self.columns[one.name].reshape(-1))]
            dtype: torch.dtype = getattr(torch, one.dtype)
            part = part if dtype.is_floating_point else part.round().to(dtype)
            found.append(part.reshape(len(matrix), *one.shape))
        return found

    def resolve(self, features: Any) -> Any:
        """Features with slices of inputs as columns: `{"age": ("x_num", 0), "scan": "image"}`.

        What is not named is one feature a column, or a whole input of more dimensions than one.
        """
        if features is not None and not isinstance(features, Mapping):
            return features
        found = {name: self._slice(name, given) for name, given in (features or {}).items()}
        taken = {column for columns in found.values() for column in columns}
        names = self.names
        for one in self.inputs:
            left = [
                int(column) for column in self.columns[one.name].ravel() if int(column) not in taken
            ]
            if len(one.shape) > 1 and left:
                found[one.name if one.name not in found else f"{one.name} (rest)"] = left
            else:
                found |= {names[column]: [column] for column in left}
        return found

    def _slice(self, name: Any, given: Any) -> list[int]:
        name_of, *place = given if isinstance(given, tuple) and given else (given,)
        if isinstance(name_of, str) and name_of in self.columns:
            try:
                chosen = self.columns[name_of][place[0] if len(place) == 1 else tuple(place)]
            except IndexError as failure:
                raise ValueError(f"features[{name!r}] is {given!r}, but {failure}.") from failure
            return [int(column) for column in np.atleast_1d(chosen).ravel()]
        if isinstance(given, str) and given in self.names:
            return [self.names.index(given)]
        wanted = "pass the name of an input, or (input, column or slice)"
        raise ValueError(
            f"features[{name!r}] is {given!r}; {wanted}. The inputs are {list(self.columns)}."
        )


class _Stream:
    """A loader's batches as matrices, labels left aside; it starts anew as often as the loader does."""

    def __init__(self, X: Iterable[Any], packing: Packing) -> None:
        self._X = X
        self._packing = packing

    def __iter__(self) -> Iterator[Tensor]:
        for batch in self._X:
            yield self._packing.matrix(batch[0] if _is_nested(batch) else batch)


def _is_nested(batch: Any) -> bool:
    """Whether a batch is (inputs, labels)."""
    return (
        isinstance(batch, tuple | list)
        and len(batch) > 0
        and isinstance(batch[0], Mapping | tuple | list)
    )


class Unpacks(nn.Module):
    """A model of several inputs as a module of one matrix."""

    def __init__(self, model: nn.Module, packing: Packing) -> None:
        super().__init__()
        self.model = model
        self.packing = packing

    def forward(self, x: Tensor) -> Any:
        """The model's own result."""
        parts = self.packing.unpack(x)
        if self.packing.kind == "args":
            return self.model(*parts)
        return self.model(
            **{one.name: part for one, part in zip(self.packing.inputs, parts, strict=True)}
        )


class Members(nn.Module):
    """The mean of an ensemble whose members answer one by one, (rows, members, outputs): what TabM is used for."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        inner: Any = unwrap(model)
        members, outputs = (
            int(size) for size in inner.output.weight.shape[:: len(inner.output.weight.shape) - 1]
        )
        self.head = linear(np.tile(np.eye(outputs) / members, (1, members)))

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        """The mean over the members."""
        found = self.model(*args, **kwargs)
        return torch.as_tensor(self.head(found.reshape(len(found), -1).double()))


def _packed(module: nn.Module, packing: Packing, rows: Tensor | None = None) -> Adapted:
    unpacks = Unpacks(module, packing)
    whole = {
        one.name: packing.columns[one.name]
        for one in packing.inputs
        if one.dtype in _WHOLE and len(one.shape) == 1
    }
    tokens = _find_tokens(unpacks, rows, whole) if rows is not None and whole else None
    how: dict[str, Any] = {
        "pack": packing.pack,
        "resolve": _Refusal(tokens, packing),
        "layout": packing.layout,
    }
    return Adapted(unpacks, feature_names=packing.names, codes=packing.codes, **how)


def _first_batch(module: nn.Module, X: Any) -> Any:
    """The rows themselves, or those of a loader's first batch without labels."""
    if isinstance(X, torch.utils.data.DataLoader):
        with torch.random.fork_rng(devices=[]):  # looking must not move the caller's random numbers
            batch: Any = next(iter(X), None)
    elif isinstance(X, list):
        batch = X[0] if X else None
    else:
        return X
    if _is_nested(batch):
        return batch[0]
    if isinstance(batch, tuple | list):
        return batch[: sum(p.default is p.empty for p in _parameters(module))]  # labels come after
    return batch


def _parts(module: nn.Module, batch: Any) -> Mapping[str, Any] | list[tuple[str, Any]] | None:
    """The inputs by name where there are several; else None."""
    return _known(module, batch) if isinstance(batch, Mapping) else _by_position(module, batch)


def _parameters(module: nn.Module) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    return [p for p in inspect.signature(module.forward).parameters.values() if p.kind in kinds]


def _known(module: nn.Module, parts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Entries that the model takes; labels are left aside."""
    parameters = inspect.signature(module.forward).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()) and not set(parameters) & set(
        parts
    ):
        return parts
    found = {
        name: part
        for name, part in parts.items()
        if name in parameters and name not in ("labels", "label")
    }
    if not found:
        has = f"X is a dict of {list(parts)}, but the model takes {list(parameters)}"
        raise TypeError(f"{has}; pass a matrix, or rename them.")
    return found


def _by_position(module: nn.Module, parts: Any) -> list[tuple[str, Any]] | None:
    # TorchScript modules do not tell them
    parameters = _parameters(module) if isinstance(parts, tuple | list) else []
    arrays = bool(parameters) and all(
        isinstance(part, Tensor | np.ndarray) and part.ndim for part in parts
    )
    if not arrays or not 2 <= len(parts) <= len(parameters):
        return None
    return [(p.name, part) for p, part in zip(parameters, parts, strict=False)]
