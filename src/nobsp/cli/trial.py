"""A model tried on the first rows or images, so that what does not fit is said before the long work."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nobsp.cli.tables import Data, names_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nobsp.cli.models import Loaded
    from nobsp.cli.pictures import Pictures

_ROWS, _IMAGES = 256, 4


@dataclass(frozen=True, eq=False)
class Tried:
    """A model that runs on the caller's rows or images.

    Attributes:
        model: Ready to be explained.
        outputs: How many outputs it has.
        output_names: Their names, where a caller or the model itself gave them; else numbers.
        link: What follows its last linear layer.
        classes: Labels of the classes as the model itself knows them.
    """

    model: Any
    outputs: int
    output_names: tuple[str, ...]
    link: str
    classes: Any = None


def tried_on_rows(options: Namespace, loaded: Loaded, data: Data, calibration: Data) -> Tried:
    """Tries a model on the first rows of a table.

    Raises:
        TypeError: If a column a network is to take does not hold numbers.
        ValueError: If a value is missing, the model cannot take the columns, or there are not as many names as outputs.
    """
    from nobsp.network.adapted import adapt
    from nobsp.network.batches import batches_of
    from nobsp.tabular.options import find_readout, names_of_outputs

    if loaded.takes_numbers:
        for table in dict.fromkeys((data, calibration)):
            _require_numbers(table)
    columns = [str(name) for name in calibration.rows.columns]
    choose = "choose with --features" if options.target else "name the target with --target, or choose with --features"
    with _hinting(f"{len(columns)} columns were given ({_some(columns)}); {choose}."):
        model = loaded.ready(lambda: next(iter(batches_of(calibration.rows, batch_size=_ROWS, argument="--data"))))
        adapted = adapt(model)
        first = batches_of(calibration.rows, batch_size=_ROWS, encode=adapted.encode, argument="--data")
        readout = find_readout(adapted.module, next(iter(first)), head=options.head)
    given = names_in(options.output_names)
    names = names_of_outputs(given, outputs=readout.outputs, known=adapted.output_names)
    classes = getattr(model, "classes_", None)
    return Tried(model, readout.outputs, names, adapted.link or readout.link, classes)


def tried_on_images(options: Namespace, loaded: Loaded, images: Pictures) -> Tried:
    """Tries a network on the first images of a folder; folders name its classes where there are as many.

    Raises:
        ValueError: If the network cannot take the images, or there are not as many names as classes.
    """
    from nobsp.vision.search import find_anatomy

    some = images.batch(range(min(_IMAGES, len(images))))
    channels, height, width = some.shape[1:]
    other = 3 if channels == 1 else 1
    with _hinting(
        f"Images of {channels} channel{'s' if channels > 1 else ''}, {height}×{width}, were given; --channels {other} "
        "and --size give others."
    ):
        model = loaded.ready(lambda: some)
        anatomy = find_anatomy(model, some, layer=getattr(options, "layer", None), head=options.head)
    given = names_in(options.output_names)
    if given is None and len(images.classes) == anatomy.outputs > 1:
        given = list(images.classes)
    if given is not None and len(given) != anatomy.outputs:
        raise ValueError(f"--output-names has {len(given)} names but the model has {anatomy.outputs} classes.")
    names = given or [f"class {number}" for number in range(anatomy.outputs)]
    return Tried(model, anatomy.outputs, tuple(names), "identity")


@contextmanager
def _hinting(hint: str) -> Iterator[None]:
    """Adds a hint to the errors of a model that could not be run; what else is wrong says so itself."""
    try:
        yield
    except (ValueError, RuntimeError) as failure:
        ran_into = failure.__cause__ if isinstance(failure, ValueError) else failure
        if not isinstance(ran_into, RuntimeError | IndexError | TypeError):
            raise
        said = " ".join(str(failure).split()).rstrip(".")
        raise ValueError(f"{said}. {hint}") from failure


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:6])}, …, {names[-1]}"


# ---------------------------------------------------------------------- numbers in tables


def _require_numbers(table: Data) -> None:
    import numpy as np

    from nobsp.network.tables import table_of

    table_of(table.rows, argument=str(table.path), columns=None, numeric=True)
    for name in table.rows.columns:
        values = table.rows[name]
        for wrong, what in ((values.isna().to_numpy(), "no value"), (np.isinf(values.to_numpy(float)), "infinity")):
            if wrong.any():
                row = int(wrong.argmax())
                raise ValueError(
                    f"row {row}{line_of(table.path, row, rows=len(values))} of {table.path} has {what} in column "
                    f"{name!r}; fill it in, or take such rows out."
                )


def line_of(path: Path, row: int, *, rows: int) -> str:
    """Where in a text file a row stands, in words; nothing where lines and rows do not go together."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            together = sum(1 for _ in file) == rows + 1
    except UnicodeDecodeError:
        return ""
    return f" (line {row + 2})" if together else ""
