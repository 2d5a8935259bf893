"""What a command reads: models, tables from CSV, Parquet or Arrow files, and folders of images."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import itertools
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nobsp._typing import ModelLike
from nobsp.arguments import count, suggest
from nobsp.cli.grouping import Grouping, read_grouping
from nobsp.cli.options import (
    ImageOptions,
    ModelOptions,
    TableOptions,
    UsageError,
    require_path,
    split_names,
)

if TYPE_CHECKING:
    from torch import Tensor

_FACTORY = re.compile(r"(?P<module>[\w.]+|.+\.py):(?P<name>[\w.]+)")
# skops asks before it makes objects of these; they hold arrays and numbers, and run nothing.
_HARMLESS = {
    "numpy.dtype",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
}
_TRUST = "If you trust where it came from, add --trust-pickle"
_REASON = (
    f"is a pickle, and reading a pickle can run any code its author put there. {_TRUST}; better, "
    "save"
)
_WEIGHTS = "holds weights alone; pass --model package.module:factory --weights"
# What an archive may become when it is unpacked: so many bytes, and so many more for each of its
# own.
_MOST_UNPACKED = 1 << 26
_MOST_PER_BYTE = 100
# Types that pandas writes into its remarks; of others, texts of a fixed length could have any.
_PANDAS_TYPE = re.compile(r"[A-Za-z_]+[0-9]{0,3}(\[.*\]|<.*>)*")
_TYPED_REMARKS = ("columns", "column_indexes")
_PARQUET = (".parquet", ".pq")
_ARROW = (".arrow", ".feather", ".ipc")
_BYTES_OF_NUMBER = 8


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model as it was loaded."""

    name: str
    origin: str  # from what
    # makes it of some rows, which an exported program needs
    prepare: Callable[[Callable[[], Tensor]], Any]
    feature_names: tuple[str, ...] | None = None  # the columns it was fitted on, where it knows


def load_model(options: ModelOptions) -> Loaded:
    """Finds the model of --model."""
    model_name = options.model
    weights = options.weights
    trust_pickle = options.trust_pickle
    path = Path(model_name)
    if path.is_file():
        if weights is not None:
            raise UsageError(
                "--weights goes with a factory, --model package.module:factory; a file has its own."
            )
        return _from_file(path, trust_pickle=trust_pickle)
    match = _FACTORY.fullmatch(model_name)
    if match is not None:
        return _from_factory(
            model_name, match["module"], match["name"], weights, trust_pickle=trust_pickle
        )
    if not path.exists() and not path.suffix and len(path.parts) == 1:
        raise UsageError(
            f"--model {model_name}: there is no such file; of a library's model name a function "
            "that returns it, file.py:function."
        )
    require_path(path, "--model")
    raise UsageError(f"--model {model_name} is a folder; name a file, or package.module:factory.")


def _from_file(path: Path, *, trust_pickle: bool) -> Loaded:
    from nobsp.network.archive import UntrustedError
    from nobsp.network.exported import as_module, kind_of, load_exported

    kind = kind_of(path)
    if kind == "exported":
        try:
            program = load_exported(path, trust_pickle=trust_pickle)
        except UntrustedError as untrusted:
            raise UsageError(f"--model {untrusted} {_TRUST}.") from untrusted
        return Loaded(path.stem, "exported program", lambda example: as_module(program, example()))
    if kind == "skops":
        return _as_loaded(path.stem, "skops file", _from_skops(path, trust_pickle=trust_pickle))
    if kind == "pickle":
        return _as_loaded(path.stem, "pickle", _from_pickle(path, trust_pickle=trust_pickle))
    if kind == "safetensors":
        raise UsageError(f"--model {path} {_WEIGHTS} {path}.")
    if path.suffix == ".onnx":
        return _as_loaded(path.stem, "ONNX file", _from_onnx(path))
    if kind == "script":
        raise UsageError(
            f"--model {path}: TorchScript is not read; save the model with torch.export.save."
        )
    named = f"{path}:function" if path.suffix == ".py" else "package.module:function"
    raise UsageError(
        f"--model {path} is not a model that this command reads: torch.export (.pt2), skops or "
        f"ONNX. Or name a function that returns the model, {named}."
    )


def _from_onnx(path: Path) -> Any:
    """A session of onnxruntime."""
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError as absent:
        raise UsageError(
            f"--model {path}: ONNX files need onnxruntime; install it with pip install onnxruntime."
        ) from absent
    try:
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as failure:  # onnxruntime has errors of its own for each kind of damage
        raise UsageError(
            f"--model {path} is not an ONNX file that can be run: {failure}"
        ) from failure


def _from_skops(path: Path, *, trust_pickle: bool) -> Any:
    try:
        import skops.io
    except ImportError as missing:
        raise ImportError(
            f"{path} is a skops file, which needs skops: pip install skops."
        ) from missing
    with _told_as_unreadable("--model", path):
        _require_modest_archive(path)
        unknown = sorted(set(skops.io.get_untrusted_types(file=path)) - _HARMLESS)
    if unknown and not trust_pickle:
        what = f"objects that could run code when they are loaded: {', '.join(unknown)}"
        raise UsageError(f"--model {path} holds {what}. {_TRUST}.")
    with _told_as_unreadable("--model", path):
        return skops.io.load(path, trusted=[*unknown, *_HARMLESS])


@contextmanager
def _told_as_unreadable(option: str, path: Path) -> Iterator[None]:
    """Makes one clear error of the many that a damaged file causes in the library that reads it."""
    try:
        yield
    except Exception as failure:
        reason = " ".join(f"{type(failure).__name__}: {failure}".split())
        raise ValueError(f"{option} {path} cannot be read ({reason[:300]}).") from failure


def _require_modest_archive(path: Path) -> None:
    """An error for an archive of few bytes that would take all memory when it is unpacked."""
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(info.file_size for info in archive.infolist())
    if unpacked > _MOST_UNPACKED + _MOST_PER_BYTE * path.stat().st_size:
        raise ValueError(f"its {path.stat().st_size:,} bytes would become {unpacked:,}")


def _from_pickle(path: Path, *, trust_pickle: bool) -> Any:
    made_by_torch = zipfile.is_zipfile(path)
    if made_by_torch and isinstance(_load_tensors(path), dict):
        raise UsageError(f"--model {path} {_WEIGHTS} {path}.")
    if not trust_pickle:
        raise UsageError(
            f"--model {path} {_REASON} it with torch.export.save (networks) or skops.io.dump."
        )
    if made_by_torch:
        return _load_trusted("--model", path)
    with _told_as_unreadable("--model", path):
        return importlib.import_module("joblib").load(path)


def _load_tensors(path: Path) -> Any:
    """What torch.save wrote, read without running any code it may hold.

    None where it is more than tensors and containers.
    """
    import torch

    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                packed = [info for info in archive.infolist() if info.compress_type]
            # torch compresses nothing, and unpacks whatever a file says.
            if packed:
                return None
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # noqa: BLE001 - torch has many for what it does not take
        return None


def _load_trusted(option: str, path: Path) -> Any:
    """What torch.save wrote, by any code that it names."""
    import torch

    with _told_as_unreadable(option, path):
        return torch.load(path, map_location="cpu", weights_only=False)


def _from_factory(
    model_name: str, module: str, name: str, weights: Path | None, *, trust_pickle: bool
) -> Loaded:
    import torch

    value: Any = _import_module(model_name, module)
    for part in name.split("."):
        if not hasattr(value, part):
            known = [entry for entry in dir(value) if not entry.startswith("_")]
            raise UsageError(
                f"--model {model_name}: {module} has no {part!r}; {suggest(part, known)}"
            )
        value = getattr(value, part)
    is_model = isinstance(value, torch.nn.Module) or (
        hasattr(value, "get_params") and not isinstance(value, type)
    )
    if callable(value) and not is_model:
        value = value()
    if weights is not None:
        _load_weights(value, weights, trust_pickle=trust_pickle)
    return _as_loaded(name.rpartition(".")[2], "a function", value)


def _import_module(model_name: str, module: str) -> Any:
    """A module by its name, the current folder included, or a file of Python."""
    if module.endswith(".py"):
        path = Path(module)
        require_path(path, "--model")
        spec: Any = importlib.util.spec_from_file_location(path.stem, path)
        loaded = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, loaded)
        spec.loader.exec_module(loaded)
        return loaded

    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is None or not (
            module == missing.name or module.startswith(f"{missing.name}.")
        ):
            raise  # it is there, and needs something that is not
        raise UsageError(
            f"--model {model_name}: there is no module {missing.name!r} here or installed."
        ) from missing


def _load_weights(model: ModelLike, path: Path, *, trust_pickle: bool) -> None:
    import torch

    from nobsp.network.exported import kind_of

    require_path(path, "--weights")
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"--weights is for torch modules; the factory made a {type(model).__name__}."
        )
    kind = kind_of(path)
    if kind == "safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            state: Any = load_file(path)
        except SafetensorError as damaged:
            raise ValueError(f"--weights {path} is damaged ({damaged}).") from damaged
    else:
        state = _load_tensors(path)
        if state is None and kind != "pickle":
            raise ValueError(
                f"--weights {path} is damaged, or no file of weights: .safetensors, or what "
                "torch.save writes."
            )
        if state is None and not trust_pickle:
            raise UsageError(f"--weights {path} {_REASON} them as safetensors.")
        state = _load_trusted("--weights", path) if state is None else state
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]  # as trainers keep it
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as failure:
        text = " ".join(str(failure).split())
        raise ValueError(f"--weights {path} does not fit the model: {text[:400]}") from failure


def _as_loaded(name: str, origin: str, model: ModelLike) -> Loaded:
    names = getattr(model, "feature_names_in_", None)
    return Loaded(
        name,
        origin,
        lambda _: model,
        None if names is None else tuple(str(column) for column in names),
    )


@contextmanager
def add_hint(hint: str) -> Iterator[None]:
    """Adds a hint to the errors of a model that could not be run.

    Other errors already say what is wrong, and pass unchanged.
    """
    try:
        yield
    except (ValueError, RuntimeError) as failure:
        ran_into = failure.__cause__ if isinstance(failure, ValueError) else failure
        if not isinstance(ran_into, RuntimeError | IndexError | TypeError):
            raise
        text = " ".join(str(failure).split()).rstrip(".")
        raise ValueError(f"{text}. {hint}") from failure


@dataclass(frozen=True, eq=False)
class Data:
    """A table as `rows`, a frame of the model's columns, and `labels`, the column of --target."""

    path: Path
    rows: Any
    labels: Any
    target: str | None
    not_used: tuple[str, ...]
    # Features of several columns, as --groups names them.
    features: Mapping[str, Sequence[str]]
    # Which rows belong together, one value per row; None where nobody said.
    groups: Any = None

    @property
    def where(self) -> str:
        """How many rows of what file, in words."""
        return f"{count(len(self.rows), 'row')} of {self.path.name}"


def read_table(
    path: Path,
    options: TableOptions,
    *,
    option: str,
    known: Sequence[str] | None,
    need_target: bool = True,
    is_calibrated_on: bool = True,
) -> Data:
    """Reads a file and cuts it to the columns needed.

    `known` are the columns that the model was fitted on, None where it does not know.
    """
    frame = read_frame(path, option=option)
    there = [str(name) for name in frame.columns]
    frame = frame.set_axis(there, axis=1)
    target = options.target if need_target or options.target in there else None
    grouping = read_grouping(options.groups, there, table=path, is_calibrated_on=is_calibrated_on)
    named = split_names(options.features, there)
    _require_target_apart(options.target, named, grouping)

    # A column that says which rows belong together is given to a model only where it asks for it.
    apart = (options.target, grouping.rows)
    chosen = named
    if chosen is None:
        chosen = list(known or [name for name in there if name not in apart])
    _require_columns([target] if target else [], there, path, reason="--target")
    _require_columns(named or [], there, path, reason="--features")
    _require_columns(chosen, there, path, reason="--model, fitted on others")
    if not chosen:
        raise UsageError(f"{path} has no column left for the model to take.")

    return Data(
        path=path,
        rows=frame[chosen],
        labels=frame[target] if target else None,
        target=target,
        not_used=tuple(name for name in there if name not in chosen and name not in apart),
        features=grouping.features,
        groups=frame[grouping.rows] if grouping.rows in there else None,
    )


def _require_target_apart(
    target: str | None, named: Sequence[str] | None, grouping: Grouping
) -> None:
    """An error where the column of --target is asked for as something else too."""
    if named is not None and target in named:
        raise UsageError(f"--features has {target!r}, which is the --target.")
    if grouping.rows is not None and grouping.rows == target:
        raise UsageError(f"--groups is {target!r}, which is the --target.")


def _require_columns(
    names: Sequence[str], there: Sequence[str], path: Path, *, reason: str
) -> None:
    """An error for the first column in a list that a table lacks.

    `reason` is the option that asks for the columns.
    """
    for name in names:
        if name not in there:
            raise UsageError(f"{reason}: {path} has no column {name!r}; {suggest(name, there)}")


def read_frame(path: Path, *, option: str, texts: Mapping[str, Sequence[Any]] | None = None) -> Any:
    """A table as a pandas frame with one column of each name.

    `texts` are columns that hold text whatever it looks like, such as "01" or "NA", with the levels
    they are known by.
    """
    require_path(path, option)
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder; name a CSV or Parquet file.")

    try:
        import pandas as pd
        import pyarrow as pa
    except ImportError as missing:
        raise ImportError(
            "reading tables needs pandas and pyarrow: pip install 'nobsp[frames]'."
        ) from missing

    try:
        table = _read_arrow(path)
        _require_plain_remarks(table.schema)
        frame = _plain_decimals(table).to_pandas()
    except (
        pa.ArrowException,
        LookupError,
        MemoryError,
        NotImplementedError,
        TypeError,
        ValueError,
        OSError,
    ) as failure:
        # What a file says of its columns is read by pandas, which has many exceptions for it.
        reason = " ".join(str(failure).split()) or type(failure).__name__
        raise UsageError(f"{option} {path} cannot be read: {reason}") from failure

    for name in table.column_names:
        if table.column_names.count(name) > 1:
            raise UsageError(f"{option} {path} has two columns called {name!r}; rename one.")

    if table.num_rows == 0:
        raise UsageError(f"{option} {path} has no rows.")

    if not isinstance(frame.index, pd.RangeIndex):
        frame = frame.reset_index()

    known = {name: levels for name, levels in (texts or {}).items() if name in table.column_names}
    if known and path.suffix.lower() not in (*_PARQUET, *_ARROW):
        for name, values in _read_texts(path, known).items():
            frame[name] = pd.Series(values, index=frame.index, dtype=object)
    return frame


def _read_arrow(path: Path) -> Any:
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.parquet

    if path.suffix.lower() in _PARQUET:
        _require_room(pyarrow.parquet.read_metadata(path))
        return pyarrow.parquet.read_table(path)
    if path.suffix.lower() in _ARROW:
        table = pyarrow.feather.read_table(path)
        # Offsets are taken as they are written, and wrong ones would end the process.
        table.validate(full=True)
        return table
    convert = pyarrow.csv.ConvertOptions(strings_can_be_null=True)
    return pyarrow.csv.read_csv(path, parse_options=_csv_dialect(path), convert_options=convert)


def _require_room(metadata: Any) -> None:
    """An error for a Parquet table that does not fit into this machine's memory.

    The file may be small, as repeated values take no room in it.
    """
    stated = sum(metadata.row_group(k).total_byte_size for k in range(metadata.num_row_groups))
    needed = max(stated, metadata.num_rows * metadata.num_columns * _BYTES_OF_NUMBER)
    if needed > memory_of_machine():
        raise ValueError(
            f"its {metadata.num_rows:,} rows of {metadata.num_columns:,} columns need {needed:,} "
            "bytes, more than this machine has"
        )


def memory_of_machine() -> int:
    """Bytes of memory, whoever uses them; without bounds where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return sys.maxsize


def _require_plain_remarks(schema: Any) -> None:
    """An error where the remarks for pandas name types that it would make gigabytes of."""
    remarks = schema.pandas_metadata
    parts = [remarks.get(part) for part in _TYPED_REMARKS] if isinstance(remarks, dict) else []
    columns = itertools.chain.from_iterable(part for part in parts if isinstance(part, list))
    for column in columns:
        named = str(column.get("numpy_type")) if isinstance(column, dict) else ""
        if not _PANDAS_TYPE.fullmatch(named):
            raise ValueError(f"{named[:80]!r} is not a type of a column")


def _plain_decimals(table: Any) -> Any:
    """A table whose decimals, as databases write them, are numbers."""
    import pyarrow as pa

    for position, field in enumerate(table.schema):
        if pa.types.is_decimal(field.type):
            numbers = table.column(position).cast(pa.float64())
            table = table.set_column(position, field.name, numbers)
    return table


def _csv_dialect(path: Path) -> Any:
    """How a CSV file is to be parsed: by the separator that its first line has most of."""
    import pyarrow.csv

    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
    return pyarrow.csv.ParseOptions(
        delimiter=max(",;\t|", key=first.count), newlines_in_values=True
    )


def _read_texts(path: Path, levels: Mapping[str, Sequence[Any]]) -> dict[str, list[str | None]]:
    """Columns of a CSV file as the text that stands there; None where it reads as missing.

    A text that usually means missing is kept where a level is called so.
    """
    import pyarrow as pa
    import pyarrow.csv

    convert = pyarrow.csv.ConvertOptions(
        include_columns=list(levels),
        column_types=dict.fromkeys(levels, pa.string()),
        strings_can_be_null=False,
    )
    table = pyarrow.csv.read_csv(path, parse_options=_csv_dialect(path), convert_options=convert)

    usual = set(pyarrow.csv.ConvertOptions().null_values)
    columns = {}
    for name, known in levels.items():
        missing = usual.difference(known)
        if not all(isinstance(level, str) for level in known):
            # Missing is a level of its own, and an empty cell means it.
            missing.add("")
        columns[name] = [
            None if text in missing else text for text in table.column(name).to_pylist()
        ]
    return columns


def write_csv(path: Path, columns: Mapping[str, Sequence[Any]], *, neutral: bool = True) -> None:
    """A table as CSV, numbers to full precision and missing ones empty.

    Texts that a spreadsheet would run get an apostrophe before them, unless the table is the
    caller's own data.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        plain = csv.writer(file, lineterminator="\n")
        quoted = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        for row in itertools.chain([tuple(columns)], zip(*columns.values(), strict=True)):
            cells = ["" if value != value else value for value in row]
            if neutral:
                cells = [_neutral(cell) for cell in cells]
            # Python's writer leaves a carriage return without quotes, where readers begin a new
            # row.
            breaks = any(isinstance(cell, str) and "\r" in cell for cell in cells)
            (quoted if breaks else plain).writerow(cells)


# Some spreadsheets take the wide letters of East Asian keyboards for formulas too.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def _neutral(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    if not isinstance(cell, str) or not cell.startswith(_FORMULA_STARTS):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_PRESETS: dict[str, tuple[Sequence[float], Sequence[float]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5,), (0.5,)),
    "none": ((0.0,), (1.0,)),
}


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images of a folder, prepared the way a network takes them and read when they are needed."""

    folder: Path
    paths: tuple[Path, ...]
    labels: tuple[str | None, ...]  # the folders they lie in, None for images in no folder
    classes: tuple[str, ...]  # all those folders, sorted
    size: tuple[int, int] | None
    squash: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    batch_size: int
    progress: bool = False  # whether reading them all draws a bar
    broken: tuple[Path, ...] = ()  # files that were left out because they cannot be read

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[Tensor]:
        from nobsp.network.batches import with_progress

        every = range(len(self))
        size = self.batch_size
        batches = (self.batch(every[start : start + size]) for start in every[::size])
        return with_progress(
            batches, total=len(self), enabled=self.progress, description="calibrating"
        )

    def batch(self, positions: Sequence[int]) -> Tensor:
        """Some of the images, (n, channels, height, width)."""
        import torch

        pixels = [self._pixels(self.paths[position]) for position in positions]
        shapes = sorted({picture.shape[:2] for picture in pixels})
        if len(shapes) > 1:
            examples = " and ".join(f"{height}×{width}" for height, width in shapes[:2])
            raise UsageError(
                f"the images of {self.folder} have different sizes, such as {examples}; resize "
                "with --size."
            )
        stacked = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255.0
        mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (self.mean, self.std))
        return (stacked - mean) / std

    @property
    def names(self) -> list[str]:
        """Where in the folder each image is."""
        return [path.relative_to(self.folder).as_posix() for path in self.paths]

    @property
    def where(self) -> str:
        """How many images of what folder, in words."""
        return f"{count(len(self), 'image')} of {self.folder.name}"

    @property
    def preparation(self) -> str:
        """Size and normalisation in words.

        A preparation that the network was not trained with shows here first.
        """
        size = "own size" if self.size is None else f"{self.size[0]}×{self.size[1]}"
        return f"{size}, mean {', '.join(map(str, self.mean))}, std {', '.join(map(str, self.std))}"

    def shown(self, batch: Tensor) -> Tensor:
        """A batch as it looks: from 0 to 1."""
        mean, std = (batch.new_tensor(numbers)[:, None, None] for numbers in (self.mean, self.std))
        return (batch * std + mean).clamp(0.0, 1.0)

    def chosen(self, positions: Sequence[int]) -> Pictures:
        """Some of the images."""
        paths, labels = zip(*((self.paths[k], self.labels[k]) for k in positions), strict=True)
        return replace(self, paths=paths, labels=labels)

    def _pixels(self, path: Path) -> Any:
        from PIL import Image, ImageOps

        from nobsp.vision.pictures import FORMATS

        grey = len(self.mean) == 1
        try:
            with Image.open(path, formats=FORMATS) as opened:
                picture = ImageOps.exif_transpose(opened).convert("L" if grey else "RGB")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as failure:
            raise ValueError(
                f"{path} cannot be read as an image ({failure}); repair it, take it out, or leave "
                "it out with --skip-broken."
            ) from failure
        if self.size is not None:
            height, width = self.size
            resize = (
                picture.resize
                if self.squash
                else lambda size, resample: ImageOps.fit(picture, size, resample)
            )
            picture = resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(picture, dtype=np.uint8)
        return pixels[:, :, None] if grey else pixels


def find_pictures(
    folder: Path,
    options: ImageOptions,
    *,
    option: str,
    batch_size: int,
    names_only: bool = False,
) -> Pictures:
    """The images of a folder and of the folders in it, in the order of their names.

    Those of more than eight bits are an error, but where their pixels do not matter.
    """
    require_path(folder, option, folder=True)
    if importlib.util.find_spec("PIL") is None:
        raise ImportError("reading images needs Pillow: pip install pillow.")
    paths = _image_files(folder)
    if not paths:
        suffixes = ", ".join(suffix[1:] for suffix in _SUFFIXES)
        raise UsageError(f"{option} {folder} holds no images ({suffixes}).")

    broken = tuple(path for path in paths if options.skip_broken and not _is_readable(path))
    paths = [path for path in paths if path not in broken]
    if not paths:
        raise UsageError(f"{option} {folder} holds only files that cannot be read as images.")

    labels = tuple(_folder_in(folder, path) for path in paths)
    mean, std = _normalisation(options)
    pictures = Pictures(
        folder=folder,
        paths=tuple(paths),
        labels=labels,
        classes=tuple(sorted({label for label in labels if label is not None})),
        size=_shape_of(options),
        squash=options.fit == "squash",
        mean=mean,
        std=std,
        batch_size=batch_size,
        broken=broken,
    )
    if option == "--images" and options.limit is not None:
        pictures = pictures.chosen(range(min(options.limit, len(pictures))))
    if not names_only:
        _refuse_deep(pictures, option)
    return pictures


def _refuse_deep(pictures: Pictures, option: str) -> None:
    """An error for a picture of more than eight bits per pixel.

    Its values would be cut off at 255, and it would be shown white or black.
    """
    from PIL import Image

    from nobsp.vision.pictures import DEEP_MODES, FORMATS

    for path in pictures.paths:
        try:
            with Image.open(path, formats=FORMATS) as opened:
                mode = opened.mode
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            continue  # it is named where it is read
        if mode in DEEP_MODES:
            raise UsageError(
                f"{option}: {path} has more than 8 bits a pixel (mode {mode}); save it with 8, or "
                "pass it to NObSPCam, which scales it by its own range."
            )


def _image_files(folder: Path) -> list[Path]:
    """Files of a folder, and of the folders in it, that are called like images."""
    paths = []
    for home, _, names in os.walk(folder):
        paths += [Path(home, name) for name in names if name.lower().endswith(_SUFFIXES)]
    # Devices and pipes may be called like images too, and never end.
    return sorted(path for path in paths if path.is_file())


def _folder_in(folder: Path, path: Path) -> str | None:
    """The first folder between a folder and a file in it, which is the file's class.

    None where the file lies in the folder itself.
    """
    parts = path.relative_to(folder).parts
    return parts[0] if len(parts) > 1 else None


def _shape_of(options: ImageOptions) -> tuple[int, int] | None:
    """Height and width that images are brought to; None where they stay as they are."""
    size = options.size
    if size is None:
        return None
    if len(size) > 2 or any(side < 1 for side in size):
        sides = " ".join(map(str, size))
        raise UsageError(f"--size takes a side, or height and width, in pixels; found {sides}.")
    return size[0], size[-1]


def _is_readable(path: Path) -> bool:
    """Whether a file is an image to its end."""
    from PIL import Image

    from nobsp.vision.pictures import FORMATS

    try:
        with Image.open(path, formats=FORMATS) as opened:
            opened.load()
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return False
    return True


def _normalisation(options: ImageOptions) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and spread per channel, from --normalise or from --mean and --std."""
    channels = options.channels
    named = options.normalise or ("imagenet" if channels == 3 else "none")
    mean = options.mean or _PRESETS[named][0]
    std = options.std or _PRESETS[named][1]
    for option, numbers in (("--mean", mean), ("--std", std)):
        if len(numbers) not in (1, channels):
            complaint = f"found {len(numbers)} (imagenet has three channels)"
            raise UsageError(
                f"{option} takes one number, or one for each of the {channels} channels; "
                f"{complaint}."
            )
    if min(std) <= 0:
        raise UsageError(f"--std must be above zero, found {min(std):g}.")
    return tuple(mean) * (channels // len(mean)), tuple(std) * (channels // len(std))
