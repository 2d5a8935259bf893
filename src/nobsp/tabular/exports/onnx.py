"""Functions as an ONNX model of standard operators.

All numbers are looked up together: one search by halving finds the segments of every number on
every axis, and terms with the same kinds of axes are read in one step, however many they are.
Arithmetic is double precision throughout.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count as counting
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nobsp._typing import AnyArray, ArrayLike, BoolArray, FloatArray, TableLike
from nobsp.drafts import check_path, replacing
from nobsp.frames import is_missing
from nobsp.tabular.exports.layout import (
    Layout,
    LevelPlace,
    NumberPlace,
    TermLayout,
    layout_of,
    read_inputs,
    texts_of_levels,
)

if TYPE_CHECKING:
    from nobsp.tabular.functions import Functions

# Old enough for every runtime of the last years.
_OPSET = 17
_ML_OPSET = 3
_IR_VERSION = 8
_LARGEST = float(np.finfo(np.float64).max)
# What booleans are as text.
_FLAGS = ("False", "True")


def write_onnx(
    functions: Functions, path: str | os.PathLike[str], *, like: TableLike | None
) -> None:
    """Writes the model, atomically."""
    try:
        import onnx
    except ImportError as missing:
        raise ImportError("to_onnx needs onnx: pip install 'nobsp[onnx]'.") from missing
    target = check_path(path)
    layout = layout_of(functions)
    if not layout.used:
        raise ValueError("the functions read no column; there is nothing to export.")

    kinds = input_kinds(functions, layout, like)
    graph = _Graph(layout, kinds)
    model = graph.model()
    onnx.checker.check_model(model)
    with replacing(target) as draft, open(draft, "wb") as file:
        file.write(model.SerializeToString())


def input_kinds(functions: Functions, layout: Layout, like: TableLike | None) -> dict[int, str]:
    """Per column that is read, the type of its input."""
    kinds = dict.fromkeys(layout.used, "float32")
    if like is not None:
        columns, _ = read_inputs(functions, layout, like, argument="like")
        for column in layout.used:
            dtype = columns[column].dtype
            kinds[column] = dtype.name if dtype.name in ("float32", "bool") else "float64"
            if dtype.kind in "iu":
                kinds[column] = "int64"
    return kinds | dict.fromkeys(layout.texts, "str")


def onnx_inputs(
    functions: Functions, X: TableLike, *, like: TableLike | None
) -> dict[str, AnyArray]:
    """Rows as the exported model takes them."""
    layout = layout_of(functions)
    kinds = input_kinds(functions, layout, like)
    markers = missing_markers(layout)
    columns, n_rows = read_inputs(functions, layout, X, argument="X")

    inputs: dict[str, AnyArray] = {}
    for column in layout.used:
        name = layout.columns[column]
        cells = columns[column]
        if kinds[column] == "str":
            marker = markers[column]
            texts = [marker if is_missing(cell) else str(cell) for cell in cells.tolist()]
            inputs[name] = np.array(texts, dtype=object).reshape(n_rows, 1)
        else:
            inputs[name] = cells.astype(kinds[column]).reshape(n_rows, 1)
    return inputs


def missing_markers(layout: Layout) -> dict[int, str]:
    """Per column of names the text for a missing one: empty, or a text that is no level."""
    markers = {}
    for place in layout.places:
        if isinstance(place, LevelPlace) and place.names is not None:
            column = place.columns[0]
            marker = ""
            while marker in place.names:
                marker = f"{marker}>" if marker else "<missing>"
            markers[column] = marker
    return markers


@dataclass(eq=False)
class _Graph:
    """Nodes and constants, as they are added."""

    layout: Layout
    kinds: dict[int, str]
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._numbers = counting()
        self._known: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def model(self) -> Any:
        """The whole model."""
        from onnx import helper

        inputs = [self._input(column) for column in self.layout.used]
        places = self._places()
        contributions = self._contributions(places)
        outputs = self._outputs(contributions)
        graph = helper.make_graph(
            self.nodes, "nobsp_functions", inputs, outputs, initializer=self.constants
        )
        model = helper.make_model(
            graph,
            opset_imports=[
                helper.make_opsetid("", _OPSET),
                helper.make_opsetid("ai.onnx.ml", _ML_OPSET),
            ],
            ir_version=_IR_VERSION,
            producer_name="nobsp",
        )
        helper.set_model_props(model, self._about())
        return model

    def _about(self) -> dict[str, str]:
        """What a reader of the file needs to know, as JSON."""
        layout = self.layout
        markers = {layout.columns[column]: text for column, text in missing_markers(layout).items()}
        about: dict[str, Any] = {
            "nobsp.terms": [term.name for term in layout.terms],
            "nobsp.outputs": layout.outputs,
            "nobsp.classes": layout.classes,
            "nobsp.base": layout.base.tolist(),
            "nobsp.missing": markers,
        }
        return {key: json.dumps(value) for key, value in about.items()}

    # ------------------------------------------------------------------ building

    def add(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """A node with one output, whose name is returned."""
        from onnx import helper

        name = f"nobsp_{next(self._numbers)}_{operator}"
        node = helper.make_node(operator, list(inputs), [name], domain=domain, **attributes)
        self.nodes.append(node)
        return name

    def constant(self, values: ArrayLike, dtype: Any = None) -> str:
        """The name of a constant; equal ones are stored once."""
        from onnx import numpy_helper

        array = np.asarray(values, dtype=dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if array.dtype.kind == "O" or key not in self._known:
            name = f"nobsp_{next(self._numbers)}_constant"
            self.constants.append(numpy_helper.from_array(array, name))
            self._known[key] = name
        return self._known[key]

    def whole(self, values: ArrayLike) -> str:
        """A constant of whole numbers."""
        return self.constant(values, np.int64)

    def as_whole(self, source: str) -> str:
        """The same as whole numbers."""
        from onnx import TensorProto

        return self.add("Cast", source, to=TensorProto.INT64)

    def pick(self, source: str, positions: Sequence[int]) -> str:
        """Some columns of a matrix."""
        return self.add("Gather", source, self.whole(positions), axis=1)

    def _input(self, column: int) -> Any:
        from onnx import TensorProto, helper

        kinds = {
            "float32": TensorProto.FLOAT,
            "float64": TensorProto.DOUBLE,
            "int64": TensorProto.INT64,
            "bool": TensorProto.BOOL,
            "str": TensorProto.STRING,
        }
        name = self.layout.columns[column]
        return helper.make_tensor_value_info(name, kinds[self.kinds[column]], ["rows", 1])

    # ------------------------------------------------------------------ places

    def _places(self) -> _Places:
        """Every row's place on every axis."""
        numeric = [column for column in self.layout.used if column not in self.layout.texts]
        places = _Places()
        numbers = ""
        if numeric:
            columns = [self._as_double(column) for column in numeric]
            numbers = self.add("Concat", *columns, axis=1)

        axes = list(enumerate(self.layout.places))
        on_knots = [(k, place) for k, place in axes if isinstance(place, NumberPlace)]
        if on_knots:
            self._search(places, numbers, numeric, on_knots)
        for k, place in axes:
            if isinstance(place, LevelPlace) and place.names is not None:
                self._find_name(places, k, place)
            elif isinstance(place, LevelPlace):
                self._find_numbers(places, k, place, numbers, numeric)
        return places

    def _as_double(self, column: int) -> str:
        from onnx import TensorProto

        return self.add("Cast", self.layout.columns[column], to=TensorProto.DOUBLE)

    def _search(
        self,
        places: _Places,
        numbers: str,
        numeric: Sequence[int],
        axes: Sequence[tuple[int, NumberPlace]],
    ) -> None:
        """The segments of all numbers on all their axes, by halving, and how far along they are."""
        on_axes = [place for _, place in axes]
        picked = self.pick(numbers, [numeric.index(place.column) for place in on_axes])
        magnitude = self.add("Abs", picked)
        is_finite = self.add("LessOrEqual", magnitude, self.constant(_LARGEST))
        x = self.add("Where", is_finite, picked, self.constant(0.0))

        knots = _KnotRows.of(on_axes)
        segment = self._segments(x, knots)
        way = self._along(x, segment, knots)

        # A missing number is at a node of its own where its axis has one, else at the first, and
        # unknown.
        has_node = [[place.missing for place in on_axes]]
        node = [[len(place.knots) if place.missing else 0 for place in on_axes]]
        before = self.add("Where", is_finite, segment, self.whole(node))
        is_between = self.as_whole(is_finite)
        places.append(
            [k for k, _ in axes],
            before=before,
            after=self.add("Add", before, is_between),
            ways=self.add("Where", is_finite, way, self.constant(0.0)),
            known=self.add("Or", is_finite, self.constant(has_node, np.bool_)),
        )

    def _segments(self, x: str, knots: _KnotRows) -> str:
        """The segment that each number lies in, found by halving."""
        first_knots = knots.starts_of_rows(knots.length)
        inner = self.constant(knots.inner.ravel())
        zeros = self.add("Mul", x, self.constant(0.0))
        segment = self.as_whole(zeros)

        for power in reversed(range(knots.n_steps)):
            candidate = self.add("Add", segment, self.whole(2**power))
            at = self.add("Add", candidate, self.whole(first_knots - 1))
            knot = self.add("Gather", inner, at, axis=0)
            is_above = self.add("LessOrEqual", knot, x)
            segment = self.add("Where", is_above, candidate, segment)
        return segment

    def _along(self, x: str, segment: str, knots: _KnotRows) -> str:
        """How far each number is along its segment: 0 at its start, 1 at its end.

        Grids are held at their edges.
        """
        first_segments = knots.starts_of_rows(knots.length + 1)
        at = self.add("Add", segment, self.whole(first_segments))
        start = self.add("Gather", self.constant(knots.starts.ravel()), at, axis=0)
        scale = self.add("Gather", self.constant(knots.per_width.ravel()), at, axis=0)

        distance = self.add("Sub", x, start)
        way = self.add("Mul", distance, scale)
        bounded = self.add("Clip", way, self.constant(0.0), self.constant(1.0))
        return self.add("Where", self.constant(knots.held[None]), bounded, way)

    def _find_name(self, places: _Places, position: int, place: LevelPlace) -> None:
        """The level of a name; a missing one has a text of its own."""
        column = place.columns[0]
        name = self.layout.columns[column]
        texts = texts_of_levels(place, column=name, flags=_FLAGS)
        keys: list[str] = []
        levels: list[int] = []
        for level, spellings in enumerate(texts):
            keys += spellings
            levels += [level] * len(spellings)
        if place.missing is not None:
            keys.append(missing_markers(self.layout)[column])
            levels.append(place.missing)

        encoded = [key.encode("utf-8") for key in keys]
        level_of = self.add(
            "LabelEncoder",
            name,
            domain="ai.onnx.ml",
            keys_strings=encoded,
            values_int64s=levels,
            default_int64=-1,
        )
        known = self.add("GreaterOrEqual", level_of, self.whole(0))
        self._add_levels(places, position, level_of, known)

    def _find_numbers(
        self,
        places: _Places,
        position: int,
        place: LevelPlace,
        numbers: str,
        numeric: Sequence[int],
    ) -> None:
        """The level of one or several numbers: the one all of whose numbers are equal."""
        from onnx import TensorProto

        assert place.numbers is not None
        levels = place.numbers.copy()
        for k, column in enumerate(place.columns):
            if self.kinds[column] == "float32":
                # Numbers that come in single precision are compared with levels rounded alike.
                # That of a missing level, the largest of all, is beyond single precision.
                with np.errstate(over="ignore"):
                    levels[:, k] = levels[:, k].astype(np.float32)

        picked = self.pick(numbers, [numeric.index(column) for column in place.columns])
        each = self.add("Unsqueeze", picked, self.whole([1]))
        is_equal = self.add("Equal", each, self.constant(levels[None]))
        as_number = self.add("Cast", is_equal, to=TensorProto.FLOAT)
        is_level = self.add("ReduceMin", as_number, axes=[2], keepdims=0)
        level_of = self.add("ArgMax", is_level, axis=1, keepdims=1)
        largest = self.add("ReduceMax", is_level, axes=[1], keepdims=1)
        known = self.add("Greater", largest, self.constant(0.5, np.float32))
        if place.missing is not None:
            is_absent = self.add("IsNaN", picked)
            level_of = self.add("Where", is_absent, self.whole(place.missing), level_of)
            known = self.add("Or", known, is_absent)
        self._add_levels(places, position, level_of, known)

    def _add_levels(self, places: _Places, position: int, level_of: str, known: str) -> None:
        """A place of levels, the first one where it was not seen."""
        from onnx import TensorProto

        level = self.add("Where", known, level_of, self.whole(0))
        as_number = self.add("Cast", level, to=TensorProto.DOUBLE)
        no_way = self.add("Mul", as_number, self.constant(0.0))
        places.append([position], before=level, after=level, ways=no_way, known=known)

    # ------------------------------------------------------------------ terms

    def _contributions(self, places: _Places) -> str:
        """Contributions of every term, (rows, terms, outputs)."""
        joined_places = self._join(places)

        # Terms whose axes are of the same kinds are read together.
        groups: dict[tuple[bool, ...], list[int]] = {}
        for number, term in enumerate(self.layout.terms):
            kinds = tuple(
                isinstance(self.layout.places[position], NumberPlace) for position in term.places
            )
            groups.setdefault(kinds, []).append(number)

        parts = []
        for kinds, members in groups.items():
            terms = [self.layout.terms[number] for number in members]
            if kinds:
                parts.append(self._read(terms, kinds, joined_places))
            else:
                parts.append(self._constants(terms, joined_places.before))
        joined = self.add("Concat", *parts, axis=1)
        sequence = [number for members in groups.values() for number in members]
        return self.add("Gather", joined, self.constant(np.argsort(sequence)), axis=1)

    def _join(self, places: _Places) -> _JoinedPlaces:
        """All places side by side."""
        return _JoinedPlaces(
            column={position: column for column, position in enumerate(places.positions)},
            before=self.add("Concat", *places.before, axis=1),
            after=self.add("Concat", *places.after, axis=1),
            ways=self.add("Concat", *places.ways, axis=1),
            known=self.add("Concat", *places.known, axis=1),
        )

    def _constants(self, terms: Sequence[TermLayout], source: str) -> str:
        """Terms without an axis, the same for every row."""
        values = np.stack([term.values.reshape(-1) for term in terms])[None]
        rows = self.add("Shape", source, start=0, end=1)
        shape = self.add("Concat", rows, self.whole(values.shape[1:]), axis=0)
        return self.add("Expand", self.constant(values), shape)

    def _read(
        self, terms: Sequence[TermLayout], kinds: tuple[bool, ...], places: _JoinedPlaces
    ) -> str:
        """Terms of one kind between the nodes around each row, (rows, terms, outputs)."""
        n_outputs = len(self.layout.outputs)
        flat = np.concatenate([term.values.reshape(-1, n_outputs) for term in terms])
        sizes = [term.values.size // n_outputs for term in terms]
        offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        strides = np.array([term.strides() for term in terms]).T

        axes = []
        for axis, is_number in enumerate(kinds):
            columns = [places.column[term.places[axis]] for term in terms]
            stride = self.whole(strides[axis][None])
            after = ""
            if is_number:
                after = self.add("Mul", self.pick(places.after, columns), stride)
            axes.append(
                _ReadAxis(
                    before=self.add("Mul", self.pick(places.before, columns), stride),
                    after=after,
                    way=self._with_outputs(self.pick(places.ways, columns)),
                    known=self.pick(places.known, columns),
                )
            )

        values = self._between(self.constant(flat), self.whole(offsets[None]), axes)
        is_known = axes[0].known
        for read_axis in axes[1:]:
            is_known = self.add("And", is_known, read_axis.known)
        return self.add("Where", self._with_outputs(is_known), values, self.constant(0.0))

    def _between(self, values: str, node: str, axes: Sequence[_ReadAxis]) -> str:
        """Linear along one axis after another, from the nodes around each row."""
        if not axes:
            return self.add("Gather", values, node, axis=0)

        axis, *others = axes
        low = self._between(values, self.add("Add", node, axis.before), others)
        if not axis.after:
            return low
        high = self._between(values, self.add("Add", node, axis.after), others)
        difference = self.add("Sub", high, low)
        change = self.add("Mul", axis.way, difference)
        return self.add("Add", low, change)

    def _with_outputs(self, source: str) -> str:
        """A matrix with an axis for the outputs."""
        return self.add("Unsqueeze", source, self.whole([2]))

    # ------------------------------------------------------------------ outputs

    def _outputs(self, contributions: str) -> list[Any]:
        """The model's outputs: prediction, probabilities, sum and contributions."""
        from onnx import TensorProto, helper

        layout = self.layout
        n_outputs = len(layout.outputs)
        total = self.add("ReduceSum", contributions, self.whole([1]), keepdims=0)
        sums = self.add("Add", total, self.constant(layout.base[None]))

        outputs = []

        def show(source: str, name: str, kind: int, shape: list[Any]) -> None:
            self.nodes.append(helper.make_node("Identity", [source], [name]))
            outputs.append(helper.make_tensor_value_info(name, kind, shape))

        taken = {layout.columns[column] for column in layout.used}
        names = _free_names(("prediction", "probabilities", "sum", "contributions"), taken)
        if layout.classes:
            kind = _kind_of_classes(layout.classes, TensorProto)
            show(self._class(sums), names[0], kind, ["rows"])
        else:
            predicted = self._after_link(sums)
            show(predicted, names[0], TensorProto.DOUBLE, ["rows", n_outputs])
        if layout.has_probabilities:
            chances = self._probabilities(sums)
            show(chances, names[1], TensorProto.DOUBLE, ["rows", len(layout.classes)])
        show(sums, names[2], TensorProto.DOUBLE, ["rows", n_outputs])
        shape = ["rows", len(layout.terms), n_outputs]
        show(contributions, names[3], TensorProto.DOUBLE, shape)
        return outputs

    def _class(self, sums: str) -> str:
        """The class that is decided for."""
        if len(self.layout.outputs) == 1:
            limit = self.constant(0.5 if self.layout.are_probabilities else 0.0)
            first = self.add("Squeeze", sums, self.whole([1]))
            is_second = self.add("Greater", first, limit)
            position = self.as_whole(is_second)
        else:
            position = self.add("ArgMax", sums, axis=1, keepdims=0)
        return self.add("Gather", self.constant(_classes_array(self.layout.classes)), position)

    def _probabilities(self, sums: str) -> str:
        """Probabilities of the classes."""
        is_single = len(self.layout.outputs) == 1
        if self.layout.are_probabilities:
            bounded = self.add("Clip", sums, self.constant(0.0), self.constant(1.0))
            return self._two_classes(bounded) if is_single else self._shares(bounded)
        if not is_single:
            return self.add("Softmax", sums, axis=1)

        negative = self.add("Neg", sums)
        first = self.add("Sigmoid", negative)
        second = self.add("Sigmoid", sums)
        return self.add("Concat", first, second, axis=1)

    def _two_classes(self, second: str) -> str:
        """Probabilities of two classes, from that of the second."""
        first = self.add("Sub", self.constant(1.0), second)
        return self.add("Concat", first, second, axis=1)

    def _shares(self, bounded: str) -> str:
        """Probabilities that add up to one; where all are zero, none is preferred."""
        total = self.add("ReduceSum", bounded, self.whole([1]), keepdims=1)
        is_positive = self.add("Greater", total, self.constant(0.0))
        divisor = self.add("Where", is_positive, total, self.constant(1.0))
        share = self.add("Div", bounded, divisor)
        evenly = self.constant(1.0 / len(self.layout.outputs))
        return self.add("Where", is_positive, share, evenly)

    def _after_link(self, sums: str) -> str:
        """What the model says where its outputs are sums."""
        operators: dict[str, Callable[[], str]] = {
            "sigmoid": lambda: self.add("Sigmoid", sums),
            "exp": lambda: self.add("Exp", sums),
            "softplus": lambda: self._softplus(sums),
        }
        return operators[self.layout.link]() if self.layout.link in operators else sums

    def _softplus(self, sums: str) -> str:
        """log(1 + exp(x)) without overflow; runtimes lack the operator in double precision."""
        size = self.add("Abs", sums)
        shrunk = self.add("Exp", self.add("Neg", size))
        rest = self.add("Log", self.add("Add", shrunk, self.constant(1.0)))
        positive = self.add("Max", sums, self.constant(0.0))
        return self.add("Add", positive, rest)


@dataclass(frozen=True, eq=False)
class _KnotRows:
    """Knots of several axes in rows of one length, filled up with infinity."""

    n_steps: int  # halvings that find a segment among those of the longest row
    inner: FloatArray  # knots but for the first and the last
    starts: FloatArray  # where segments begin
    per_width: FloatArray  # one by the width of each segment
    held: BoolArray  # per axis whether numbers beyond its ends are held there

    @classmethod
    def of(cls, places: Sequence[NumberPlace]) -> _KnotRows:
        """The knots of these axes."""
        n_steps = max(math.ceil(math.log2(len(place.knots))) for place in places)
        length = 2**n_steps - 1
        inner = np.full((len(places), length), np.inf)
        starts = np.zeros((len(places), length + 1))
        per_width = np.zeros((len(places), length + 1))
        for row, place in enumerate(places):
            inner[row, : len(place.knots) - 2] = place.knots[1:-1]
            starts[row, : len(place.knots) - 1] = place.knots[:-1]
            per_width[row, : len(place.knots) - 1] = place.per_width

        held = np.array([place.held for place in places])
        return cls(n_steps, inner=inner, starts=starts, per_width=per_width, held=held)

    @property
    def length(self) -> int:
        """Inner knots of every row."""
        return int(self.inner.shape[1])

    def starts_of_rows(self, length: int) -> NDArray[np.int64]:
        """Where each row begins when rows of a length lie one behind another, (1, rows)."""
        return np.arange(len(self.inner), dtype=np.int64)[None] * length


@dataclass(eq=False)
class _Places:
    """Names of matrices (rows, places) that say where each row is between its nodes.

    They are the nodes before and behind it, the way between these, and whether it is known.
    """

    positions: list[int] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    ways: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)

    def append(
        self, positions: Sequence[int], *, before: str, after: str, ways: str, known: str
    ) -> None:
        """Adds some places."""
        self.positions += positions
        self.before.append(before)
        self.after.append(after)
        self.ways.append(ways)
        self.known.append(known)


@dataclass(frozen=True, eq=False)
class _JoinedPlaces:
    """The same, each of them one matrix."""

    column: dict[int, int]  # of every place
    before: str
    after: str
    ways: str
    known: str


@dataclass(frozen=True, eq=False)
class _ReadAxis:
    """Names of matrices (rows, terms) for one axis of terms that are read together."""

    before: str  # nodes before each row, counted in the terms' values
    after: str  # those behind it; empty for levels
    way: str  # how far it is between them
    known: str  # whether it has a place at all


def _free_names(wanted: Sequence[str], taken: set[str]) -> list[str]:
    """Names of outputs that no column has."""
    return [name if name not in taken else f"{name}_output" for name in wanted]


def _classes_array(classes: Sequence[Any]) -> AnyArray:
    """Classes as a constant: texts, whole numbers, or numbers."""
    if all(isinstance(level, bool) for level in classes):
        return np.array(classes, dtype=np.bool_)
    if all(isinstance(level, int) for level in classes):
        return np.array(classes, dtype=np.int64)
    if all(isinstance(level, int | float) for level in classes):
        return np.array(classes, dtype=np.float64)
    return np.array([str(level) for level in classes], dtype=object)


def _kind_of_classes(classes: Sequence[Any], kinds: Any) -> int:
    """The type of the output that names classes."""
    by_dtype = {"b": kinds.BOOL, "i": kinds.INT64, "f": kinds.DOUBLE, "O": kinds.STRING}
    return int(by_dtype[_classes_array(classes).dtype.kind])
