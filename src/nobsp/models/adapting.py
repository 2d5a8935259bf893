"""Any model as one torch module of one matrix.

Models may be of other libraries, functions, or torch modules of several inputs.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeGuard

import narwhals as nw
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nobsp._typing import AnyArray, ModelLike, TableLike
from nobsp.arguments import as_numpy, join_names
from nobsp.frames import frame_of, match_columns
from nobsp.models.coded import Coded, Runs, linear
from nobsp.network.adapted import Adapted, MixedColumnsError, Recipe, framed, grouping_rows
from nobsp.network.guest import DispatchMode, device_and_dtype, evaluation_mode, unwrap

_OPENED = "nobsp.as_module(model, rows)"
# Rows that show whether an input is looked up as token ids are, and of which kinds that may be.
_PROBED = 16
# Positions of an input that are compared with what is looked up.
_MOST_COMPARED = 64
# Libraries whose models are taken by what they are, whether or not they look like scikit-learn's.
_TREE_LIBRARIES = ("xgboost", "lightgbm", "catboost", "interpret")
_WHOLE = ("int32", "int64", torch.int32, torch.int64)


def adapt(
    model: ModelLike, X: TableLike = None, *, layout: Mapping[str, Any] | None = None
) -> Adapted:
    """Accepts a torch module, a fitted model of another library, or any function of rows.

    Args:
        model: A torch module; a fitted scikit-learn estimator, pipeline or search; a model of
            XGBoost, LightGBM, CatBoost, interpret or skorch; an onnxruntime session; or a function
            from a float64 array to an array.
        X: The rows it is to be run on, where there are any yet: they tell of names of levels,
            missing numbers and several inputs.
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
    library = type(model).__module__.partition(".")[0]
    if library == "skorch":
        return _adapt_skorch(model, X, layout)
    if isinstance(model, nn.Module):
        return _adapt_module(model, X, layout)
    if isinstance(model, torch.export.ExportedProgram | str | os.PathLike | Mapping | type):
        raise TypeError(_refusal(model))
    if library == "onnxruntime":
        from nobsp.models.estimators import adapt_session

        return adapt_session(model)

    if layout is None:
        X = _in_the_models_order(model, X)
    coded = _coding_of(X, layout)
    if library in _TREE_LIBRARIES or hasattr(model, "get_params"):
        is_whole = layout is not None and bool(layout.get("whole"))
        estimator = _adapt_estimator(model, X, coded, is_whole=is_whole)
        if estimator is not None:
            return estimator
    return _adapt_callable(model, X, coded)


def _adapt_skorch(model: ModelLike, X: TableLike, layout: Mapping[str, Any] | None) -> Adapted:
    """The module of a fitted skorch model, with the names of its classes."""
    if not getattr(model, "initialized_", False):
        from sklearn.exceptions import NotFittedError

        raise NotFittedError(
            f"model is a {type(model).__name__} that has not been fitted; call its fit first."
        )
    adapted = adapt(model.module_, X, layout=layout)
    classes = getattr(model, "classes_", None)
    return replace(adapted, output_names=None if classes is None else tuple(map(str, classes)))


def _coding_of(X: TableLike, layout: Mapping[str, Any] | None) -> Coded | None:
    """How rows become a matrix, from a layout or from the rows; None where they are one already."""
    if layout is not None:
        return Coded.from_layout(layout) if "levels" in layout else None
    return None if X is None else Coded.of(X, missing=True)


def _adapt_estimator(
    model: ModelLike, X: TableLike, coded: Coded | None, *, is_whole: bool
) -> Adapted | None:
    """A fitted estimator; None for anything else.

    Where its preprocessing mixes columns, it is taken as one function.
    """
    from nobsp.models.estimators import adapt_estimator, whole_pipeline

    estimator = adapt_estimator(model, coded)
    if estimator is None:
        return None
    estimator = replace(estimator, feature_names=_names_with_spaces(estimator.feature_names, X))
    has_preprocessing = estimator.encode is not None and estimator.encode is not coded
    if is_whole or (has_preprocessing and _mixes(model, estimator, X)):
        return whole_pipeline(model, coded)
    return estimator


def _in_the_models_order(model: ModelLike, X: TableLike) -> TableLike:
    """A frame with its columns in the order that an estimator or a booster has them in.

    Codes of names go by the position of their column.
    """
    try:
        frame = None if X is None else frame_of(X)
    except nw.exceptions.DuplicateError:
        return X  # which is said where rows are read
    known = _names_with_spaces(_stated_names(model), X)
    if frame is None or known is None or sorted(known) != sorted(map(str, frame.columns)):
        return X  # whatever is missing, or was not expected, is said where rows are read
    return match_columns(frame, argument="X", columns=known).to_native()


def _stated_names(model: ModelLike) -> tuple[str, ...] | None:
    """What a model calls its columns; None where it does not say."""
    # A method stands for its estimator, if that was fitted on a frame.
    names = getattr(getattr(model, "__self__", model), "feature_names_in_", None)
    for attribute in ("feature_names_", "feature_names", "feature_name"):
        if names is None and type(model).__module__.partition(".")[0] in _TREE_LIBRARIES:
            names = getattr(model, attribute, None)
    names = names() if callable(names) else names
    return None if names is None else tuple(str(name) for name in names)


def _names_with_spaces(names: tuple[str, ...] | None, X: TableLike) -> tuple[str, ...] | None:
    """The names of a model's columns as the rows have them.

    LightGBM writes underscores where the columns that it was trained on have spaces.
    """
    columns = _column_names(X)
    written = {column.replace(" ", "_"): column for column in columns}
    if names is None or len(written) < len(columns) or set(names) <= set(columns):
        return names
    return tuple(written[name] for name in names) if set(names) <= written.keys() else names


def _adapt_callable(model: ModelLike, X: TableLike, coded: Coded | None) -> Adapted:
    """A function from rows to numbers."""
    if not callable(model):
        raise TypeError(_refusal(model))
    _require_one_argument(model)
    # A method of an estimator that was fitted on a frame takes the same columns by name.
    names = None
    if hasattr(model, "__self__") and importlib.util.find_spec("pandas") is not None:
        names = _names_with_spaces(_stated_names(model), X)
    if coded is not None:
        function = Runs(lambda x: model(coded.back(x)))
        return Adapted(function, encode=coded, layout=coded.layout, feature_names=names)
    if names is None:
        return Adapted(Runs(model))
    return Adapted(Runs(Recipe(_asked_by_name, model, names)), feature_names=names)


def _asked_by_name(model: ModelLike, names: Sequence[str]) -> Callable[[AnyArray], Any]:
    """The method of an estimator, which is given frames; one that does not take them, arrays."""

    def ask(x: AnyArray) -> Any:
        try:
            return model(framed(x, names))
        except Exception:  # noqa: BLE001 - what an array raises, too, is told
            return model(x)

    return ask


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


def _mixes(model: ModelLike, adapted: Adapted, X: TableLike) -> bool:
    """Whether the preprocessing mixes columns or leaves numbers missing.

    Only the model as a whole can then be explained.
    """
    try:
        frame = nw.from_native(X, eager_only=True, pass_through=True)
        if isinstance(frame, nw.DataFrame):
            X = match_columns(frame, argument="X", columns=adapted.feature_names).to_native()
        elif not isinstance(X, np.ndarray) or X.ndim != 2:
            return False
        rows = grouping_rows(X)
        adapted.groups(rows)
        is_missing = adapted.encode is not None and bool(np.isnan(adapted.encode(rows)).any())
        # Predicting fails where the model does not take them.
        return is_missing and len(model.predict(rows)) > 0
    except MixedColumnsError:
        return True
    except (ValueError, TypeError):
        return False  # whatever is wrong with the rows is said where they are read


def _refusal(model: ModelLike) -> str:
    """What a model must be, and what to do with this one."""
    hint = ""
    if isinstance(model, torch.export.ExportedProgram | str | os.PathLike):
        hint = (
            f" Pass {_OPENED} for a model or file of torch.export, with some rows; load any other "
            "first."
        )
    elif isinstance(model, type):
        hint = " That is a class: pass a fitted model of it."
    elif isinstance(model, Mapping):
        hint = (
            " Weights alone do not tell what is computed: load them into the model, "
            "model.load_state_dict(...)."
        )
    return (
        "model must be a torch.nn.Module, a fitted model of scikit-learn, XGBoost, LightGBM, "
        "CatBoost, interpret or skorch, an onnxruntime session, or a function from an array to an "
        f"array; found {type(model).__name__}.{hint}"
    )


def _adapt_module(model: nn.Module, X: TableLike, layout: Mapping[str, Any] | None) -> Adapted:
    """A torch module, with its inputs side by side in one matrix where there are several."""
    module = Members(model) if type(unwrap(model)).__module__.partition(".")[0] == "tabm" else model
    if layout is not None:
        return _adapt_as_before(module, layout)

    batch = None if X is None else _first_batch(unwrap(model), X)
    parts = _parts(unwrap(model), batch)
    if parts is not None:
        packing = Packing.of(parts)
        few = {name: part[:_PROBED] for name, part in dict(parts).items()}
        return _packed(module, packing, packing.matrix(few))

    if X is not None:
        _require_one_input(unwrap(model), X)
    coded = None
    if X is not None and not isinstance(X, Tensor):
        coded = Coded.of(X, missing=False, text=False, shares_unseen=True)
    if coded is not None:
        return Adapted(module, encode=coded, layout=coded.layout)

    rows = batch[0] if isinstance(batch, tuple | list) and len(batch) == 1 else batch
    if _are_whole_numbers(rows):
        first_rows = torch.from_numpy(as_numpy(rows[:_PROBED]).copy())
        tokens = _find_tokens(module, first_rows, {"X": np.arange(rows.shape[1])})
        return Adapted(module, resolve=_Refusal(tokens))

    return Adapted(module)


def _are_whole_numbers(rows: Any) -> TypeGuard[Tensor | AnyArray]:
    """Whether rows are a matrix of whole numbers, which may be ids of tokens."""
    is_array = isinstance(rows, Tensor | np.ndarray)
    return is_array and rows.ndim == 2 and rows.dtype in _WHOLE


def _adapt_as_before(module: nn.Module, layout: Mapping[str, Any]) -> Adapted:
    """A torch module whose rows become a matrix as they did when it was calibrated."""
    if "inputs" in layout:
        return _packed(module, Packing.from_layout(layout))
    stored = Coded.from_layout(layout, shares_unseen=True)
    return Adapted(module, encode=stored, layout=dict(layout))


class _Lookups(DispatchMode):
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
    """The input that holds token ids, and its number of positions; None where there is none.

    It is found by one table of embeddings that looks several positions up alike.

    Categories that share a table have ranges of their own there.
    """
    device, _ = device_and_dtype(module)
    try:
        with evaluation_mode(module) as run, _Lookups(len(rows)) as seen:
            run(rows.to(device))
    except Exception:  # noqa: BLE001 - whatever is wrong with the rows is said where they are read
        return None

    for name, positions in columns.items():
        flat = torch.from_numpy(positions.ravel())
        few = flat[:: 1 + len(positions) // _MOST_COMPARED]
        ids = rows[:, few].long()
        if any(_shares_a_range(ids, torch.cat(table, 1)) for table in seen.found.values()):
            return name, len(positions)
    return None


def _shares_a_range(ids: Tensor, lookups: Tensor) -> bool:
    """Whether a table looks several columns up at one shift, and these have values in common."""
    varies = (ids != ids[0]).any(0) if len(ids) else torch.zeros(0)
    shifts = lookups[:, :, None] - ids[:, None]
    is_looked_up = (shifts == shifts[0]).all(0) & varies
    lookup, column = is_looked_up.nonzero().T
    shift_of = shifts[0, lookup, column]
    for shift in set(shift_of.tolist()):
        alike = sorted(set(column[shift_of == shift].tolist()))
        values = [np.unique(ids[:, position].numpy()) for position in alike]
        if len(np.unique(np.concatenate(values))) < sum(map(len, values)):
            return True
    return False


@dataclass(frozen=True)
class _Refusal:
    """Passes features on, and refuses to take each position of token ids for one."""

    tokens: tuple[str, int] | None
    packing: Packing | None = None

    def __call__(self, features: Any) -> Any:
        if self.tokens is not None and features is None:
            name, positions = self.tokens
            raise ValueError(
                f"{name} holds token ids at {positions} positions, and what a position means "
                "changes from text to "
                "text: they are not features. Pass spans of positions that mean the same in "
                "every text, features={"
                "'first': [0, 1, 2, 3], ...} or, of an input with a name, {'first': "
                "('input_ids', slice(0, 8)), ...}; "
                "a list of names where each position does mean the same, as answers to "
                "questions do; or explain a "
                "function of features of your own."
            )
        return features if self.packing is None else self.packing.resolve(features)


class Input(NamedTuple):
    """One of several inputs: its name, and shape and kind of one row."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    # what its columns are called, where it came as a frame
    columns: tuple[str, ...] = ()


class Packing:
    """Several inputs as columns of one matrix, and back."""

    def __init__(self, inputs: Sequence[Input], kind: str) -> None:
        self.inputs = tuple(inputs)
        self.kind = kind
        self.columns: dict[str, NDArray[np.intp]] = {}
        start = 0
        for part in inputs:
            stop = start + int(np.prod(part.shape))
            self.columns[part.name] = np.arange(start, stop).reshape(part.shape)
            start = stop

    @classmethod
    def of(cls, parts: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> Packing:
        """What some rows of several inputs need."""
        tensors = {name: _as_tensor(name, part) for name, part in dict(parts).items()}
        lengths = {name: len(part) for name, part in tensors.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"X has inputs of different lengths: {lengths}; all need the same rows."
            )
        inputs = []
        for name, part in dict(parts).items():
            shape = tuple(tensors[name].shape[1:])
            dtype = str(tensors[name].dtype).removeprefix("torch.")
            inputs.append(Input(name, shape, dtype, _column_names(part)))
        return cls(inputs, "kwargs" if isinstance(parts, Mapping) else "args")

    @property
    def layout(self) -> dict[str, Any]:
        """What `Packing.from_layout` makes the same again from."""
        return {"inputs": [list(part) for part in self.inputs], "kind": self.kind}

    @classmethod
    def from_layout(cls, layout: Mapping[str, Any]) -> Packing:
        """The same as the one whose layout it is."""
        inputs = [
            Input(name, tuple(shape), dtype, *map(tuple, columns))
            for name, shape, dtype, *columns in layout["inputs"]
        ]
        return cls(inputs, layout["kind"])

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the matrix's columns."""
        times = Counter(column for part in self.inputs for column in part.columns)
        names = []
        for part in self.inputs:
            if part.columns:
                # A name that two inputs have, or that is an input's own, would not tell which is
                # meant.
                are_clear = [times[name] == 1 and name not in self.columns for name in part.columns]
                for name, is_clear in zip(part.columns, are_clear, strict=True):
                    names.append(name if is_clear else f"{part.name}[{name}]")
                continue
            for index in np.ndindex(*part.shape):
                bracket = f"[{','.join(map(str, index))}]" if index else ""
                names.append(f"{part.name}{bracket}")
        return tuple(names)

    def __str__(self) -> str:
        described = []
        for name, shape, _, _ in self.inputs:
            sizes = ", ".join(map(str, ("rows", *shape)))
            described.append(f"{name} of shape ({sizes})")
        return " and ".join(described)

    @property
    def codes(self) -> tuple[int, ...]:
        """Columns of inputs that hold whole numbers."""
        whole = [part for part in self.inputs if part.dtype.startswith(("int", "uint"))]
        return tuple(int(column) for part in whole for column in self.columns[part.name].ravel())

    def pack(self, X: TableLike) -> Any:
        """Rows of all inputs as a matrix; a loader as one of such matrices."""
        if isinstance(X, Tensor | np.ndarray) or hasattr(X, "columns"):
            names = list(self.columns)
            raise TypeError(
                f"X is one table, but the model takes the inputs {names}; "
                "pass a tuple in this order, or a dict by these names."
            )
        # Labels may come after the inputs.
        is_batch = isinstance(X, Mapping) or (
            type(X) is tuple and all(_is_table(part) for part in X[: len(self.inputs)])
        )
        return self.matrix(X) if is_batch else _Stream(X, self)

    def matrix(self, X: TableLike) -> Tensor:
        """Rows of all inputs side by side; labels after them are left aside."""
        parts = X if isinstance(X, Mapping) else dict(zip(self.columns, X, strict=False))
        columns = []
        for name, shape, _, column_names in self.inputs:
            if name not in parts:
                raise ValueError(f"X lacks the input {name!r}; it has {list(parts)}.")
            tensor = _as_tensor(name, parts[name], columns=column_names).detach().cpu()
            if tuple(tensor.shape[1:]) != shape:
                expected = ("rows", *shape)
                raise ValueError(
                    f"X has input {name!r} of shape {tuple(tensor.shape)}; expected {expected}."
                )
            columns.append(tensor.reshape(len(tensor), -1).to(torch.float64))
        return torch.cat(columns, 1)

    def unpack(self, matrix: Tensor) -> list[Tensor]:
        """The inputs of some rows of the matrix, each of its own shape and kind."""
        tensors = []
        for name, shape, kind, _ in self.inputs:
            values = matrix[:, torch.from_numpy(self.columns[name].reshape(-1))]
            dtype: torch.dtype = getattr(torch, kind)
            if not dtype.is_floating_point:
                values = values.round().to(dtype)
            tensors.append(values.reshape(len(matrix), *shape))
        return tensors

    def resolve(self, features: Any) -> Any:
        """Features with slices of inputs as columns: `{"age": ("x_num", 0), "scan": "image"}`.

        What is not named is one feature per column, or a whole input of more dimensions than one.
        """
        if features is not None and not isinstance(features, Mapping):
            return features
        groups = {name: self._slice(name, members) for name, members in (features or {}).items()}
        taken = {column for columns in groups.values() for column in columns}
        names = self.names
        for name, shape, _, _ in self.inputs:
            left = [
                int(column) for column in self.columns[name].ravel() if int(column) not in taken
            ]
            if len(shape) > 1 and left:
                groups[name if name not in groups else f"{name} (rest)"] = left
            else:
                groups |= {names[column]: [column] for column in left}
        return groups

    def _slice(self, name: Any, members: Any) -> list[int]:
        """Columns of a feature: of a whole input, of a part of it, or the one with this name."""
        source, *index = members if isinstance(members, tuple) and members else (members,)
        if isinstance(source, str) and source in self.columns:
            try:
                chosen = self.columns[source][index[0] if len(index) == 1 else tuple(index)]
            except IndexError as failure:
                raise ValueError(f"features[{name!r}] is {members!r}, but {failure}.") from failure
            return [int(column) for column in np.atleast_1d(chosen).ravel()]

        if isinstance(members, str) and members in self.names:
            return [self.names.index(members)]
        raise ValueError(
            f"features[{name!r}] is {members!r}; pass the name of an input, or (input, column or "
            f"slice). The inputs are {list(self.columns)}."
        )


class _Stream:
    """A loader's batches as matrices, without labels; it restarts as often as the loader does."""

    def __init__(self, X: Iterable[Any], packing: Packing) -> None:
        self._X = X
        self._packing = packing

    def __iter__(self) -> Iterator[Tensor]:
        for batch in self._X:
            yield self._packing.matrix(batch[0] if _is_nested(batch) else batch)


def _is_nested(batch: Any) -> bool:
    """Whether a batch is (inputs, labels)."""
    if not isinstance(batch, tuple | list) or not len(batch):
        return False
    return isinstance(batch[0], Mapping | tuple | list)


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
        by_name = dict(zip(self.packing.columns, parts, strict=True))
        return self.model(**by_name)


class Members(nn.Module):
    """The mean of an ensemble whose members answer one by one, (rows, members, outputs).

    This is how TabM is used.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        inner: Any = unwrap(model)
        sizes = inner.output.weight.shape
        members = int(sizes[0])
        outputs = int(sizes[-1])
        self.head = linear(np.tile(np.eye(outputs) / members, (1, members)))

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        """The mean over the members."""
        answers = self.model(*args, **kwargs)
        return torch.as_tensor(self.head(answers.reshape(len(answers), -1).double()))


def _packed(module: nn.Module, packing: Packing, rows: Tensor | None = None) -> Adapted:
    """A module of several inputs; some rows tell whether one of them holds token ids."""
    unpacks = Unpacks(module, packing)
    whole = {
        name: packing.columns[name]
        for name, shape, dtype, _ in packing.inputs
        if dtype in _WHOLE and len(shape) == 1
    }
    tokens = None
    if rows is not None and whole:
        tokens = _find_tokens(unpacks, rows, whole)
    return Adapted(
        unpacks,
        feature_names=packing.names,
        codes=packing.codes,
        pack=packing.pack,
        resolve=_Refusal(tokens, packing),
        layout=packing.layout,
    )


def _first_batch(module: nn.Module, X: TableLike) -> Any:
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
        required = [p for p in _parameters(module) if p.default is p.empty]
        return batch[: len(required)]  # labels come after
    return batch


def _parts(module: nn.Module, batch: Any) -> Mapping[str, Any] | list[tuple[str, Any]] | None:
    """The inputs by name where there are several; else None."""
    return _known(module, batch) if isinstance(batch, Mapping) else _by_position(module, batch)


def _parameters(module: nn.Module) -> list[inspect.Parameter]:
    """What a model takes by position; nothing where its `forward` is not written in Python."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    try:
        signature = inspect.signature(module.forward)
    except ValueError:  # compiled code, such as TorchScript, tells no signature
        return []
    return [p for p in signature.parameters.values() if p.kind in kinds]


def _as_tensor(name: str, part: Any, *, columns: Sequence[str] = ()) -> torch.Tensor:
    """One of several inputs as a tensor, a frame with its columns in order; an error names it."""
    frame = frame_of(part)
    if frame is not None:
        if columns:
            frame = match_columns(frame, argument=f"input {name!r} of X", columns=columns)
        # A copy: some libraries lend arrays that torch must not write to.
        part = np.array(frame.to_numpy())
        if part.dtype == object:  # numbers beside booleans
            with suppress(TypeError, ValueError):
                part = part.astype(np.float64)
    try:
        return torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError) as failure:
        what = (
            "frame with columns that are no numbers" if frame is not None else type(part).__name__
        )
        raise TypeError(
            f"X: input {name!r} is a {what}; pass a tensor, an array or a frame of numbers."
        ) from failure


def _column_names(part: Any) -> tuple[str, ...]:
    """What the columns of an input are called; empty where it is no frame."""
    try:
        frame = frame_of(part)
    except nw.exceptions.DuplicateError:
        return ()  # which is said where rows are read
    return () if frame is None else tuple(str(name) for name in frame.columns)


def _require_one_input(module: nn.Module, X: TableLike) -> None:
    """An error for a model of several inputs that was given the rows of one."""
    required = [p.name for p in _parameters(module) if p.default is p.empty]
    if len(required) > 1:
        in_order = ", ".join(required)
        by_name = ", ".join(f'"{name}": {name}' for name in required)
        read_as = "X is a list, which is read as batches" if type(X) is list else "X holds one"
        raise TypeError(
            f"the model takes {len(required)} inputs ({in_order}), but {read_as}; pass all of "
            f"them together: a tuple ({in_order}), a dict {{{by_name}}}, or a DataLoader of such "
            "batches."
        )


def _known(module: nn.Module, parts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Entries that the model takes; labels are left aside."""
    parameters = inspect.signature(module.forward).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if takes_any and not set(parameters) & set(parts):
        return parts

    taken = parameters.keys() - {"labels", "label"}
    known = {name: part for name, part in parts.items() if name in taken}
    if not known:
        raise TypeError(
            f"X is a dict of {list(parts)}, but the model takes {list(parameters)}; pass a matrix, "
            "or rename them."
        )
    missing = [p.name for p in _parameters(module) if p.default is p.empty and p.name not in known]
    if missing:
        others = [name for name in parts if name not in parameters]
        hint = f" Rename {others[0]!r}?" if len(others) == len(missing) == 1 else ""
        raise ValueError(
            f"X lacks the input {join_names(missing)} of the model; it has {list(parts)}.{hint}"
        )
    return known


def _by_position(module: nn.Module, parts: Any) -> list[tuple[str, Any]] | None:
    """The inputs in the order of the model's arguments; None unless they are several arrays."""
    if not isinstance(parts, tuple | list):
        return None
    parameters = _parameters(module)  # none of TorchScript modules, which do not tell them
    if not 2 <= len(parts) <= len(parameters):
        return None
    if not all(_is_table(part) for part in parts):
        return None
    return [(p.name, part) for p, part in zip(parameters, parts, strict=False)]


def _is_table(part: Any) -> bool:
    """Whether this is an array, a tensor or a frame of rows."""
    if isinstance(part, Tensor | np.ndarray):
        return part.ndim > 0
    return frame_of(part) is not None
