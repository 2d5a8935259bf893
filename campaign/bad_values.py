"""Values that are not what an argument asks for, by the kind of argument."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from campaign.subjects import (
    COLUMNS,
    ROWS,
    make_image_network,
    make_images,
    make_network,
    make_rows,
)


@dataclass(frozen=True)
class Bad:
    """A value, made anew for every case."""

    name: str
    make: Callable[[np.random.Generator], Any]
    refused: bool = False  # whether taking it would be wrong whatever comes out


def _junk() -> list[Bad]:
    """What is never a table, a model or a list of names."""
    return [
        Bad("None", lambda _: None),
        Bad("text", lambda _: "nonsense"),
        Bad("bytes", lambda _: b"nonsense"),
        Bad("a number", lambda _: 3.7),
        Bad("a negative number", lambda _: -1),
        Bad("zero", lambda _: 0),
        Bad("a huge number", lambda _: 10**400),
        Bad("NaN", lambda _: float("nan")),
        Bad("infinity", lambda _: float("inf")),
        Bad("a complex number", lambda _: 1 + 2j),
        Bad("True", lambda _: True),
        Bad("object()", lambda _: object()),
        Bad("a class", lambda _: dict),
        Bad("a function", lambda _: len),
        Bad("an empty list", lambda _: []),
        Bad("an empty dict", lambda _: {}),
        Bad("a dict", lambda _: {"nonsense": 1}),
        Bad("a list of None", lambda _: [None, None]),
        Bad("a list of texts", lambda _: ["nonsense", "nonsense"]),
        Bad("nested lists", lambda _: [[1, [2]], [3]]),
        Bad("a date", lambda _: dt.date(2020, 1, 1)),
        Bad("a set", lambda _: {1, 2}),
        Bad("an empty array", lambda _: np.zeros(0)),
        Bad("a 4-dimensional array", lambda _: np.zeros((2, 2, 2, 2))),
        Bad("an array of objects", lambda _: np.array([None, "x", 3], dtype=object)),
        Bad("a path", lambda _: Path("nowhere") / "nothing"),
    ]


def _spoil(value: float) -> Callable[[np.random.Generator], np.ndarray]:
    def make(rng: np.random.Generator) -> np.ndarray:
        X = make_rows()
        X[rng.integers(len(X)), rng.integers(X.shape[1])] = value
        return X

    return make


def _frame(**changes: Any) -> pd.DataFrame:
    return pd.DataFrame(make_rows(), columns=list(COLUMNS)).assign(**changes)


def _batches(end: int, *, fails: bool) -> Iterator[np.ndarray]:
    for _ in range(end):
        yield make_rows(rows=4)
    if fails:
        raise RuntimeError("the generator failed on purpose")


def _masked() -> np.ma.MaskedArray[Any, Any]:
    return np.ma.masked_array(make_rows(), mask=make_rows() > 1.0)


def _rows() -> list[Bad]:
    return [
        Bad("one NaN", _spoil(np.nan)),
        Bad("one infinity", _spoil(np.inf)),
        Bad("one minus infinity", _spoil(-np.inf)),
        Bad("one 1e300", _spoil(1e300)),
        Bad("one 1e38", _spoil(1e38)),
        Bad("all NaN", lambda _: np.full((ROWS, 3), np.nan)),
        Bad("all zero", lambda _: np.zeros((ROWS, 3))),
        Bad("denormal", lambda _: make_rows() * 1e-310),
        Bad("tiny", lambda _: make_rows() * 1e-30),
        Bad("large", lambda _: make_rows() * 1e8),
        Bad("no rows", lambda _: np.zeros((0, 3))),
        Bad("no columns", lambda _: np.zeros((ROWS, 0))),
        Bad("one row", lambda _: make_rows(rows=1)),
        Bad("two rows", lambda _: make_rows(rows=2)),
        Bad("a column less", lambda _: make_rows(columns=2), refused=True),
        Bad("a column more", lambda _: make_rows(columns=4), refused=True),
        Bad("one dimension", lambda _: make_rows()[0]),
        Bad("three dimensions", lambda _: make_rows()[None]),
        Bad("objects", lambda _: make_rows().astype(object)),
        Bad("objects with text", lambda _: np.array([["a", 1, 2]] * 4, dtype=object)),
        Bad("texts", lambda _: make_rows().astype(str), refused=True),
        Bad("complex numbers", lambda _: make_rows() + 1j, refused=True),
        Bad("complex tensor", lambda _: torch.zeros(4, 3, dtype=torch.complex64), refused=True),
        Bad("half precision", lambda _: make_rows().astype(np.float16)),
        Bad("half tensor", lambda _: torch.tensor(make_rows()).half()),
        Bad("bfloat16 tensor", lambda _: torch.tensor(make_rows()).bfloat16()),
        Bad("float8 tensor", lambda _: torch.tensor(make_rows()).to(torch.float8_e4m3fn)),
        Bad("long double", lambda _: make_rows().astype(np.longdouble)),
        Bad("booleans", lambda _: make_rows() > 0),
        Bad("bytes", lambda _: (make_rows() > 0).astype(np.uint8)),
        Bad("large unsigned", lambda _: np.full((4, 3), 2**63 + 5, dtype=np.uint64)),
        Bad("dates", lambda _: np.full((4, 3), np.datetime64("2020-01-01")), refused=True),
        Bad("durations", lambda _: np.full((4, 3), np.timedelta64(3, "D")), refused=True),
        Bad("a masked array", lambda _: _masked(), refused=True),
        Bad("a structured array", lambda _: np.zeros(4, dtype=[("a", float), ("b", int)])),
        Bad("big-endian numbers", lambda _: make_rows().astype(">f8")),
        Bad("a transposed view", lambda _: np.asfortranarray(make_rows())),
        Bad("a read-only array", lambda _: _read_only(make_rows())),
        Bad("every second row", lambda _: make_rows(rows=2 * ROWS)[::2]),
        Bad("a tensor with gradients", lambda _: torch.tensor(make_rows()).requires_grad_()),
        Bad("a sparse tensor", lambda _: torch.eye(3).to_sparse()),
        Bad("a meta tensor", lambda _: torch.zeros(4, 3, device="meta"), refused=True),
        Bad("a frame", lambda _: _frame()),
        Bad("a frame with a gap", lambda rng: _frame(age=_gappy(rng))),
        Bad("a frame with text", lambda _: _frame(age="old")),
        Bad("a frame with dates", lambda _: _frame(age=pd.Timestamp("2020-01-01"))),
        Bad("a frame with complex numbers", lambda _: _frame(age=1j), refused=True),
        Bad("a frame with lists", lambda _: _frame(age=[[1]] * ROWS), refused=True),
        Bad("a frame with another column", lambda _: _frame(other=1.0), refused=True),
        Bad("a frame without rows", lambda _: _frame()[:0]),
        Bad("a frame with equal names", lambda _: _renamed(["age", "age", "rooms"]), refused=True),
        Bad("a frame with other names", lambda _: _renamed(["a", "b", "c"])),
        Bad("a frame with numbered names", lambda _: _renamed([0, 1, 2])),
        Bad("a frame with strange names", lambda _: _renamed(["<b>", "", "a\nb"])),
        Bad("a series", lambda _: pd.Series([1.0, 2.0]), refused=True),
        Bad("an unpacked dataset", lambda _: torch.utils.data.TensorDataset(torch.zeros(4, 3))),
        Bad("a generator that ends at once", lambda _: _batches(0, fails=False), refused=True),
        Bad("a generator that raises", lambda _: _batches(1, fails=True)),
        Bad("a generator", lambda _: _batches(4, fails=False)),
        Bad("batches of other widths", lambda _: [make_rows(rows=4), make_rows(rows=4, columns=2)]),
        Bad("an empty batch", lambda _: [make_rows(rows=4), make_rows(rows=0)]),
        *_junk(),
    ]


def _read_only(X: np.ndarray) -> np.ndarray:
    X.flags.writeable = False
    return X


def _gappy(rng: np.random.Generator) -> np.ndarray:
    column = make_rows()[:, 0]
    column[rng.integers(len(column))] = np.nan
    return column


def _renamed(names: list[Any]) -> pd.DataFrame:
    return pd.DataFrame(make_rows(), columns=names)


def _images() -> list[Bad]:
    def spoiled(value: float) -> Callable[[np.random.Generator], torch.Tensor]:
        def make(rng: np.random.Generator) -> torch.Tensor:
            images = make_images().clone()
            images[rng.integers(len(images)), 0, 2, 3] = value
            return images

        return make

    return [
        Bad("one NaN", spoiled(float("nan")), refused=True),
        Bad("one infinity", spoiled(float("inf")), refused=True),
        Bad("one 1e38", spoiled(1e38)),
        Bad("no images", lambda _: make_images()[:0], refused=True),
        Bad("one image", lambda _: make_images()[:1]),
        Bad("no batch", lambda _: make_images()[0]),
        Bad("channels last", lambda _: make_images().permute(0, 2, 3, 1)),
        Bad("three channels", lambda _: torch.zeros(4, 3, 8, 8), refused=True),
        Bad("one pixel", lambda _: torch.zeros(4, 1, 1, 1)),
        Bad("no pixels", lambda _: torch.zeros(4, 1, 0, 8), refused=True),
        Bad("another size", lambda _: make_images(size=5)),
        Bad("constant", lambda _: torch.ones(6, 1, 8, 8)),
        Bad("bytes", lambda _: (make_images() * 255).byte()),
        Bad("half precision", lambda _: make_images().half()),
        Bad("bfloat16", lambda _: make_images().bfloat16()),
        Bad("double precision", lambda _: make_images().double()),
        Bad("an array", lambda _: make_images().numpy()),
        Bad("complex numbers", lambda _: make_images() + 1j, refused=True),
        Bad("an array of objects", lambda _: make_images().numpy().astype(object)),
        Bad(
            "a masked array", lambda _: np.ma.masked_less(make_images().numpy(), 0.5), refused=True
        ),
        Bad("a meta tensor", lambda _: torch.zeros(4, 1, 8, 8, device="meta"), refused=True),
        Bad("batches of other sizes", lambda _: [make_images(), make_images(size=5)]),
        *_junk(),
    ]


def _labels() -> list[Bad]:
    return [
        Bad("one too few", lambda _: np.arange(ROWS - 1) % 3),
        Bad("one too many", lambda _: np.arange(ROWS + 1) % 3),
        Bad("unknown classes", lambda _: np.arange(ROWS) % 3 + 7),
        Bad("negative classes", lambda _: np.arange(ROWS) % 3 - 1),
        Bad("fractions", lambda _: np.arange(ROWS) / 7),
        Bad("NaN", lambda _: np.full(ROWS, np.nan)),
        Bad("one class", lambda _: np.zeros(ROWS, dtype=int)),
        Bad("names", lambda _: np.array(["red", "green", "blue"] * (ROWS // 3))),
        Bad("unknown names", lambda _: np.array(["a", "b", "c"] * (ROWS // 3))),
        Bad("texts and numbers", lambda _: np.array([1, "b", None] * (ROWS // 3), dtype=object)),
        Bad("a matrix", lambda _: np.zeros((ROWS, 2))),
        Bad("booleans", lambda _: np.arange(ROWS) % 2 == 0),
        Bad("dates", lambda _: np.full(ROWS, np.datetime64("2020-01-01"))),
        Bad("a tensor", lambda _: torch.arange(ROWS) % 3),
        *_junk(),
    ]


def _weights() -> list[Bad]:
    return [
        Bad("one too few", lambda _: np.ones(ROWS - 1), refused=True),
        Bad("negative", lambda _: -np.ones(ROWS), refused=True),
        Bad("all zero", lambda _: np.zeros(ROWS), refused=True),
        Bad("one NaN", lambda _: np.append(np.ones(ROWS - 1), np.nan), refused=True),
        Bad("one infinity", lambda _: np.append(np.ones(ROWS - 1), np.inf), refused=True),
        Bad("a matrix", lambda _: np.ones((ROWS, 2)), refused=True),
        Bad("complex", lambda _: np.ones(ROWS) + 1j, refused=True),
        Bad("texts", lambda _: np.array(["1"] * ROWS)),
        Bad("booleans", lambda _: np.arange(ROWS) % 2 == 0),
        Bad("one of a million", lambda _: np.append(np.ones(ROWS - 1), 1e6)),
        Bad("tiny", lambda _: np.full(ROWS, 1e-310)),
        *_junk(),
    ]


class Restless(nn.Module):
    """Says something else every time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = make_network()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        answer: torch.Tensor = self.inner(x) + self.calls
        return answer


class Answering(nn.Module):
    """Answers with whatever a function makes of the right answer."""

    def __init__(self, answer: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.inner = make_network()
        self.answer = answer

    def forward(self, x: torch.Tensor) -> Any:
        return self.answer(self.inner(x))


def _fail(_: Any) -> Any:
    raise RuntimeError("the model failed on purpose")


def _models() -> list[Bad]:
    return [
        Bad("a model that raises", lambda _: Answering(_fail)),
        Bad("a model that says NaN", lambda _: Answering(lambda y: y * float("nan")), refused=True),
        Bad(
            "a model that says infinity",
            lambda _: Answering(lambda y: y + float("inf")),
            refused=True,
        ),
        Bad(
            "a model of another shape",
            lambda _: Answering(lambda y: y[:, :, None].expand(-1, -1, 2) ** 2),
        ),
        Bad("a model with axes of length one", lambda _: Answering(lambda y: y[:, None, None])),
        Bad("a model that drops rows", lambda _: Answering(lambda y: y[:-1]), refused=True),
        Bad("a model that says one number", lambda _: Answering(lambda y: y.sum()), refused=True),
        Bad("a model that says nothing", lambda _: Answering(lambda _: None), refused=True),
        Bad("a model that says a text", lambda _: Answering(lambda _: "yes"), refused=True),
        Bad("a model that answers a dict", lambda _: Answering(lambda y: {"a": y})),
        Bad("a model without outputs", lambda _: Answering(lambda y: y[:, :0]), refused=True),
        Bad("a model that looks at its batch", lambda _: Answering(lambda y: y - y.mean(0))),
        Bad("a model with another answer each time", lambda _: Restless()),
        Bad(
            "a model that says complex numbers", lambda _: Answering(lambda y: y + 1j), refused=True
        ),
        Bad("a model that says integers", lambda _: Answering(lambda y: y.argmax(1))),
        Bad("a model in training mode", lambda _: _training()),
        Bad(
            "a model with dropout",
            lambda _: nn.Sequential(*_layers(), nn.Dropout(), nn.Linear(6, 3)),
        ),
        Bad("a model of NaN", lambda _: _filled(float("nan")), refused=True),
        Bad("a dead model", lambda _: _filled(0.0)),
        Bad("a huge model", lambda _: _filled(1e30)),
        Bad("a model of other columns", lambda _: make_network(columns=5), refused=True),
        Bad("a model on images", lambda _: make_image_network()),
        Bad("a model in half precision", lambda _: make_network().half()),
        Bad("a model in double precision", lambda _: make_network().double()),
        Bad("a meta model", lambda _: make_network().to("meta"), refused=True),
        Bad("a frozen model", lambda _: make_network().requires_grad_(False)),
        Bad("a function", lambda _: lambda X: np.asarray(X).sum(1)),
        Bad("a function that raises", lambda _: _fail),
        Bad("a function of nothing", lambda _: lambda: None),
        Bad("no layers", lambda _: nn.Sequential()),
        Bad("a class of models", lambda _: nn.Linear),
        *_junk(),
    ]


def _layers() -> tuple[nn.Module, ...]:
    network = make_network()
    return (network[0], network[1])


def _training() -> nn.Module:
    model = make_network()
    model.train()
    model[1].eval()
    return model


def _filled(value: float) -> nn.Module:
    model = make_network()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def _counts() -> list[Bad]:
    return [
        Bad("text", lambda _: "3"),
        Bad("a fraction", lambda _: 2.5, refused=True),
        Bad("negative", lambda _: -3, refused=True),
        Bad("zero", lambda _: 0),
        Bad("True", lambda _: True),
        Bad("numpy's three", lambda _: np.int64(3)),
        Bad("a float of three", lambda _: 3.0),
        Bad("NaN", lambda _: float("nan"), refused=True),
        Bad("infinity", lambda _: float("inf"), refused=True),
        Bad("None", lambda _: None),
        Bad("a list", lambda _: [3], refused=True),
        Bad("an array", lambda _: np.array([3, 4]), refused=True),
        Bad("a tensor", lambda _: torch.tensor(3)),
        Bad("a complex number", lambda _: 3j, refused=True),
        Bad("object()", lambda _: object(), refused=True),
        Bad("a dict", lambda _: {}, refused=True),
    ]


def _shares() -> list[Bad]:
    return [
        Bad("text", lambda _: "0.5"),
        Bad("negative", lambda _: -0.5),
        Bad("above one", lambda _: 1.5),
        Bad("a hundred", lambda _: 100),
        Bad("zero", lambda _: 0.0),
        Bad("one", lambda _: 1.0),
        Bad("denormal", lambda _: 1e-310),
        Bad("NaN", lambda _: float("nan"), refused=True),
        Bad("infinity", lambda _: float("inf")),
        Bad("minus infinity", lambda _: float("-inf"), refused=True),
        Bad("True", lambda _: True),
        Bad("None", lambda _: None),
        Bad("a list", lambda _: [0.5], refused=True),
        Bad("an array", lambda _: np.array([0.5, 0.6]), refused=True),
        Bad("a complex number", lambda _: 0.5j, refused=True),
        Bad("object()", lambda _: object(), refused=True),
    ]


def _names() -> list[Bad]:
    return [
        Bad("an unknown name", lambda _: "agee", refused=True),
        Bad("an empty name", lambda _: ""),
        Bad("a far position", lambda _: 99, refused=True),
        Bad("a negative position", lambda _: -1),
        Bad("a very negative position", lambda _: -99, refused=True),
        Bad("a fraction", lambda _: 0.5, refused=True),
        Bad("numpy's zero", lambda _: np.int64(0)),
        Bad("True", lambda _: True),
        Bad("three names", lambda _: ("age", "income", "rooms")),
        Bad("the same name twice", lambda _: ("age", "age")),
        Bad("a set", lambda _: {"age"}),
        *_junk(),
    ]


def _lists() -> list[Bad]:
    return [
        Bad("too few", lambda _: ["a"]),
        Bad("too many", lambda _: list("abcdefgh")),
        Bad("equal names", lambda _: ["a", "a", "a"]),
        Bad("numbers", lambda _: [1, 2, 3]),
        Bad("strange names", lambda _: ["<script>", "", "a\nb"]),
        Bad("names and None", lambda _: ["a", None, "c"]),
        Bad("a dict of columns", lambda _: {"a": 0, "b": [1, 2]}),
        Bad("a dict that leaves one out", lambda _: {"a": 0, "b": 1}),
        Bad("a dict of unknown columns", lambda _: {"a": 0, "b": 1, "c": 9}),
        Bad("a generator", lambda _: (name for name in "abc")),
        Bad("an array", lambda _: np.array(["a", "b", "c"])),
        Bad("very long names", lambda _: ["a" * 10**5, "b", "c"]),
        *_junk(),
    ]


def _pairs() -> list[Bad]:
    return [
        Bad("unknown features", lambda _: [("agee", "income")], refused=True),
        Bad("the same feature twice", lambda _: [("age", "age")], refused=True),
        Bad("a single name", lambda _: ["age"]),
        Bad("the pair twice", lambda _: [("age", "income"), ("income", "age")]),
        Bad("empty pairs", lambda _: [()]),
        Bad("numbers in pairs", lambda _: [(0, 1)]),
        *_counts(),
        *_junk(),
    ]


def _choices() -> list[Bad]:
    return [
        Bad("an unknown choice", lambda _: "nonsense", refused=True),
        Bad("an empty text", lambda _: "", refused=True),
        Bad("another case", lambda _: "HEAD"),
        *_junk(),
    ]


def _paths() -> list[Bad]:
    return [
        Bad("a folder that is not there", lambda _: "/nowhere/at/all/file", refused=True),
        Bad("a folder", lambda _: "/", refused=True),
        Bad("a device", lambda _: "/dev/null/file", refused=True),
        Bad("an empty path", lambda _: "", refused=True),
        Bad("a zero byte", lambda _: "a\0b", refused=True),
        Bad("a very long path", lambda _: "/tmp/" + "a" * 300, refused=True),
        Bad("bytes", lambda _: b"/nowhere/file", refused=True),
        Bad("None", lambda _: None, refused=True),
        Bad("a number", lambda _: 3.7, refused=True),
        Bad("a list", lambda _: ["/tmp/a"], refused=True),
        Bad("object()", lambda _: object(), refused=True),
    ]


def _others() -> list[Bad]:
    """Where an object of the package is asked for."""
    return [bad for bad in _junk() if bad.name != "None"]


def _arrays() -> list[Bad]:
    return [
        Bad("one NaN", lambda _: _with_nan()),
        Bad("complex numbers", lambda _: make_rows() + 1j, refused=True),
        Bad("a masked array", lambda _: _masked(), refused=True),
        Bad("one dimension", lambda _: np.ones(ROWS)),
        Bad("three dimensions", lambda _: np.ones((ROWS, 3, 2))),
        Bad("constant", lambda _: np.ones((ROWS, 3))),
        Bad("half precision", lambda _: make_rows().astype(np.float16)),
        Bad("a bfloat16 tensor", lambda _: torch.tensor(make_rows()).bfloat16()),
        Bad("no rows", lambda _: np.zeros((0, 3))),
        Bad("one row", lambda _: np.ones((1, 3))),
        Bad("huge numbers", lambda _: make_rows() * 1e300),
        Bad("denormal numbers", lambda _: make_rows() * 1e-310),
        Bad("booleans", lambda _: make_rows() > 0),
        Bad("dates", lambda _: np.full((ROWS, 3), np.datetime64("2020-01-01")), refused=True),
        *_junk(),
    ]


def _with_nan() -> np.ndarray:
    values = make_rows()
    values[3, 1] = np.nan
    return values


_KINDS: dict[str, Callable[[], list[Bad]]] = {
    "rows": _rows,
    "images": _images,
    "labels": _labels,
    "weights": _weights,
    "model": _models,
    "count": _counts,
    "share": _shares,
    "name": _names,
    "list": _lists,
    "pairs": _pairs,
    "choice": _choices,
    "path": _paths,
    "object": _others,
    "array": _arrays,
    "any": _junk,
}


@cache
def values_for(kind: str) -> tuple[Bad, ...]:
    """The bad values of a kind of argument."""
    return tuple(_KINDS[kind]())
