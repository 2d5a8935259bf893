"""A calibration as a file and back: tensors in safetensors, everything else in its JSON metadata."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import narwhals as nw
import numpy as np
import torch
from torch import Tensor, nn

from nobsp import store
from nobsp.network.adapted import Adapted
from nobsp.network.inputs import Features
from nobsp.network.levels import Counted
from nobsp.network.readout import Readout
from nobsp.network.summary import Summary
from nobsp.projection import Moments, Ridge
from nobsp.tabular.calibration import JOINT, Plan, Solution, label
from nobsp.tabular.columns import Columns, input_values
from nobsp.tabular.fitted import Fitted
from nobsp.tabular.interactions import Screening
from nobsp.tabular.options import checked
from nobsp.tabular.representations import Isolation

KIND = "tabular explainer"
VERSION = 2

Restore = Callable[[Adapted, Callable[[Tensor], Readout]], Fitted]


def save(path: str | os.PathLike[str], fitted: Fitted, options: Mapping[str, Any], *, moments: bool) -> None:
    """Writes a calibration; see `NObSP.save`.

    No rows are in the file, but what was seen of the columns is: ranges and means, values and counts of columns with
    few values or whole numbers, levels of text columns, and one typical value of each column of a pipeline's table.
    """
    plan, solution, summary = fitted.plan, fitted.solution, fitted.summary
    tensors: dict[str, Tensor] = {
        "baseline": plan.isolation.baseline,
        "base": solution.base,
        "summary/mean": summary.mean,
        "summary/minimum": summary.minimum,
        "summary/maximum": summary.maximum,
        "summary/two_valued": summary.two_valued,
        "explained": torch.from_numpy(fitted.explained.copy()),
    }
    for kind, sizes in fitted.importance.items():
        tensors[f"importance/{kind}"] = torch.from_numpy(sizes.copy())
    for name, (levels, counts) in _counted(summary).items():
        tensors[f"{name}/values"], tensors[f"{name}/counts"] = levels, counts
    for term in plan.terms:
        tensors[f"basis/{label(term)}"] = plan.bases[term]
        tensors[f"matrix/{label(term)}"] = solution.matrices[term]
        tensors[f"offset/{label(term)}"] = solution.offsets[term]
    if fitted.screening is not None:
        strengths = fitted.screening.strengths
        tensors["screening/pairs"] = torch.tensor(list(strengths), dtype=torch.int64).reshape(-1, 2)
        tensors["screening/strengths"] = torch.tensor(list(strengths.values()), dtype=torch.float64)
    if fitted.adapted.encode is not None:
        tensors["encoded"] = _encoded(fitted.adapted, fitted.columns)
    if moments:
        for name, blocks in fitted.parts.items():
            for number, part in enumerate(blocks):
                for key, value in _packed(part).items():
                    tensors[f"moments/{name}/{number}/{key}"] = value
    store.save(path, kind=KIND, version=VERSION, tensors=tensors, about=_about(fitted, options, moments))


def _about(fitted: Fitted, options: Mapping[str, Any], moments: bool) -> dict[str, Any]:
    plan, solution, screening = fitted.plan, fitted.solution, fitted.screening
    return {
        "options": {name: _plain(name, value, fitted) for name, value in options.items()},
        "fingerprint": fitted.readout.fingerprint(),
        "width": fitted.readout.width,
        "features": {"names": plan.isolation.features.names, "columns": plan.isolation.features.columns},
        "columns": {
            "names": fitted.columns.names,
            "count": fitted.columns.count,
            "members": fitted.columns.members,
            "text_levels": {str(k): v for k, v in fitted.columns.text_levels.items()},
            "template": fitted.columns.template,
            "ranges": fitted.columns.ranges,
            "number_levels": {str(k): v for k, v in fitted.columns.number_levels.items()},
        },
        "few_valued": sorted(plan.isolation.few_valued),
        "categories": sorted(plan.isolation.categories),
        "terms": plan.terms,
        "pure": plan.pure,
        "truncated": plan.truncated,
        "ridge": [fitted.ridge.value, fitted.ridge.scale],
        "ridges": [solution.ridges[term] for term in plan.terms],
        "unique_share": [solution.unique_share[term] for term in plan.terms],
        "notes": {label(term): text for term, text in solution.notes.items()},
        "note": solution.note,
        "rows": fitted.summary.rows,
        "output_names": fitted.output_names,
        "frame": None if fitted.frame is None else str(fitted.frame.value),
        "twins": {str(feature): twin for feature, twin in fitted.twins.items()},
        "screening": None if screening is None else {"rows": screening.rows, "forward_rows": screening.forward_rows},
        "moments": {name: len(blocks) for name, blocks in fitted.parts.items()} if moments else {},
    }


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Restore]:
    """The options a calibration was made with, and how to bring it back to life with its model.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, of another kind, or of another version.
    """
    tensors, about = store.load(path, kind=KIND, version=VERSION)
    try:
        _check(about, tensors)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as damaged:
        said = f"it lacks {damaged}" if isinstance(damaged, KeyError) else str(damaged).rstrip(".")
        raise ValueError(f"path {str(path)!r} is damaged: {said}; save it anew.") from damaged

    def restore(adapted: Adapted, find: Callable[[Tensor], Readout]) -> Fitted:
        return _restored(tensors, about, adapted, find)

    return dict(about["options"]), restore


# What the description must say, beside the options; all of it is written by `_about`.
_SAID = (
    ("fingerprint", str),
    ("width", int),
    ("features", dict),
    ("columns", dict),
    ("few_valued", list),
    ("categories", list),
    ("terms", list),
    ("pure", bool),
    ("truncated", bool),
    ("ridge", list),
    ("ridges", list),
    ("unique_share", list),
    ("notes", dict),
    ("note", str),
    ("rows", int),
    ("output_names", list),
    ("frame", str | None),
    ("twins", dict),
    ("screening", dict | None),
    ("moments", dict),
)


def _check(about: Any, tensors: Mapping[str, Tensor]) -> None:
    """An error that says what is missing from a file, or does not fit the rest of it."""
    if not isinstance(about, dict):
        raise ValueError("its description is no dictionary")
    for name, kind in _SAID:
        if not isinstance(about[name], kind):
            raise ValueError(f"{name!r} is {about[name]!r}")
    checked(about["options"])
    Ridge(*about["ridge"])
    size = about["options"]["batch_size"]
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"'batch_size' is {size!r}")
    if nw.Implementation.from_backend(about["frame"] or "pandas") is nw.Implementation.UNKNOWN:
        raise ValueError(f"'frame' is {about['frame']!r}")
    width, outputs = tensors["summary/mean"].numel(), len(about["output_names"])
    groups = _check_features(about, width)
    terms = _tuples(about["terms"])
    _require(all(terms), "a term has no features")
    _require_positions([feature for term in terms for feature in term], len(groups), "the terms")
    _require(terms[: len(groups)] == tuple((k,) for k in range(len(groups))), "the terms lack single features")
    _require(len(set(terms)) == len(terms), "a term is there twice")
    for name in ("ridges", "unique_share"):
        _require(len(about[name]) == len(terms), f"there are {len(about[name])} {name} for {len(terms)} terms")
        _require(all(isinstance(value, int | float) for value in about[name]), f"{name} are no numbers")
    shapes: dict[str, tuple[int | None, ...]] = {
        **dict.fromkeys(("baseline", "summary/mean", "summary/minimum", "summary/maximum"), (width,)),
        "base": (outputs,),
        "explained": (outputs,),
        "importance/main": (len(groups), outputs),
        "importance/total": (len(groups), outputs),
    }
    for term in terms:
        shapes[f"basis/{label(term)}"] = (about["width"], None)
        shapes[f"matrix/{label(term)}"] = (about["width"], outputs)
        shapes[f"offset/{label(term)}"] = (outputs,)
    if about["screening"] is not None:
        for name in ("rows", "forward_rows"):
            _require(isinstance(about["screening"][name], int), f"the screening's {name} are no number")
        _check_tensor(tensors, "screening/pairs", (None, 2), torch.int64)
        _require_positions(tensors["screening/pairs"].flatten().tolist(), len(groups), "the screened pairs")
        shapes["screening/strengths"] = (len(tensors["screening/pairs"]),)
    if "encoded" in tensors:
        shapes["encoded"] = (None,)
    for name, shape in shapes.items():
        _check_tensor(tensors, name, shape, torch.float64)
    _check_tensor(tensors, "summary/two_valued", (width,), torch.bool)
    _check_counts(tensors, groups)
    _check_moments(about, tensors, terms, outputs)


def _check_features(about: Mapping[str, Any], width: int) -> tuple[tuple[int, ...], ...]:
    """Columns of every feature, once features and columns agree with each other and with the table's width."""
    names, groups, columns = about["features"]["names"], _tuples(about["features"]["columns"]), about["columns"]
    _require(len(names) == len(groups) == len(columns["members"]), "features, names and columns differ in number")
    _require(all(isinstance(name, str) for name in names), "a feature's name is no text")
    _require(len(set(names)) == len(names), "two features have the same name")
    _require_positions([column for group in groups for column in group], width, "the features")
    _require_positions([column for group in columns["members"] for column in group], columns["count"], "the columns")
    for key in ("names", "template", "ranges"):
        _require(not columns[key] or len(columns[key]) == columns["count"], f"the columns' {key} differ in number")
    for key in ("text_levels", "number_levels"):
        _require_positions([int(feature) for feature in columns[key]], len(groups), f"the {key}")
        _require(all(isinstance(levels, list) for levels in columns[key].values()), f"the {key} are no lists")
    for key in ("few_valued", "categories"):
        _require_positions(about[key], len(groups), f"the {key} features")
    twins = [*map(int, about["twins"]), *about["twins"].values()]
    _require_positions(twins, len(groups), "the twins")
    return groups


def _check_counts(tensors: Mapping[str, Tensor], groups: Sequence[Sequence[int]]) -> None:
    for kind in ("levels", "many", "codes"):
        for numbers, (values, _) in _counts(tensors, kind).items():
            name = "/".join(map(str, (kind, *numbers)))
            _require(len(numbers) == 1 + (kind == "codes"), f"{name!r} is no name of levels")
            _require_positions(numbers[:1], len(groups), repr(name))
            _require_positions(numbers[1:], len(groups[numbers[0]]), repr(name))
            columns = 1 if kind == "codes" else len(groups[numbers[0]])
            _check_tensor(tensors, f"{name}/values", (None, columns), torch.float64)
            _check_tensor(tensors, f"{name}/counts", (len(values),), torch.int64)


def _check_moments(
    about: Mapping[str, Any], tensors: Mapping[str, Tensor], terms: Sequence[tuple[int, ...]], outputs: int
) -> None:
    if not about["moments"]:
        return
    ranks = {label(term): tensors[f"basis/{label(term)}"].shape[1] for term in terms}
    if about["pure"]:
        sizes = {JOINT: sum(ranks.values()) + outputs}
    else:
        sizes = {name: rank + about["width"] + outputs for name, rank in ranks.items()}
    _require(about["moments"].keys() == sizes.keys(), "its moments are not those of its terms")
    for name, count in about["moments"].items():
        size = sizes[name]
        for number in range(count):
            place = f"moments/{name}/{number}"
            _check_tensor(tensors, f"{place}/rows", (), torch.int64)
            _check_tensor(tensors, f"{place}/weight", (), torch.float64)
            for key in ("origin", "offset"):
                _check_tensor(tensors, f"{place}/{key}", (size,), torch.float64)
            _check_tensor(tensors, f"{place}/products", (size * (size + 1) // 2,), torch.float64)


def _check_tensor(tensors: Mapping[str, Tensor], name: str, shape: tuple[int | None, ...], dtype: torch.dtype) -> None:
    found = tensors[name]
    fits = found.ndim == len(shape) and all(n in (None, m) for n, m in zip(shape, found.shape, strict=True))
    if not fits or found.dtype != dtype:
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise ValueError(f"{name!r} is {found.dtype} of shape {tuple(found.shape)}, not {dtype} of shape ({wanted})")
    # The explained share of an output that does not vary is NaN.
    if dtype.is_floating_point and name != "explained" and not bool(found.isfinite().all()):
        raise ValueError(f"{name!r} has values that are not finite")


def _require(holds: bool, said: str) -> None:
    if not holds:
        raise ValueError(said)


def _require_positions(found: Iterable[Any], count: int, where: str) -> None:
    for position in found:
        if isinstance(position, bool) or not isinstance(position, int) or not 0 <= position < count:
            raise ValueError(f"{where} have {position!r}, which is not between 0 and {count - 1}")


def _restored(
    tensors: Mapping[str, Tensor],
    about: Mapping[str, Any],
    adapted: Adapted,
    find: Callable[[Tensor], Readout],
) -> Fitted:
    features = Features(tuple(about["features"]["names"]), _tuples(about["features"]["columns"]))
    summary = Summary(
        about["rows"],
        tensors["summary/mean"],
        tensors["summary/minimum"],
        tensors["summary/maximum"],
        {feature: counted for (feature,), counted in _counts(tensors, "levels").items()},
        {feature: counted for (feature,), counted in _counts(tensors, "many").items()},
        _codes(tensors),
        tensors["summary/two_valued"],
        torch.zeros(0, tensors["summary/mean"].numel(), dtype=torch.float64),
    )
    isolation = Isolation(
        features,
        tensors["baseline"],
        frozenset(about["few_valued"]),
        frozenset(about["categories"]),
        int(about["options"]["batch_size"]),
    )
    columns = _columns(features, about["columns"])
    try:
        _require_same_preprocessing(adapted, columns, tensors.get("encoded"))
        readout = find(_probe(isolation, summary))
    except (TypeError, ValueError) as failure:
        raise ValueError(
            f"model is not the one this explainer was calibrated on ({str(failure).rstrip('.')}); pass that model, or "
            "calibrate anew."
        ) from failure
    if readout.fingerprint() != about["fingerprint"]:
        width = (
            f"; its head takes {readout.width} numbers, not {about['width']}" if readout.width != about["width"] else ""
        )
        raise ValueError(
            f"model is not the one this explainer was calibrated on (its weights differ{width}); pass that model, or "
            "calibrate anew."
        )
    if (readout.width, readout.outputs) != (about["width"], len(about["output_names"])):
        raise ValueError("the file is damaged: its sizes are not those of the model it was calibrated on.")
    terms = _tuples(about["terms"])
    plan = Plan(
        isolation,
        terms,
        {term: tensors[f"basis/{label(term)}"] for term in terms},
        about["pure"],
        about["truncated"],
    )
    solution = Solution(
        {term: tensors[f"matrix/{label(term)}"] for term in terms},
        {term: tensors[f"offset/{label(term)}"] for term in terms},
        tensors["base"],
        dict(zip(terms, about["ridges"], strict=True)),
        dict(zip(terms, about["unique_share"], strict=True)),
        {term: about["notes"][label(term)] for term in terms if label(term) in about["notes"]},
        about["note"],
    )
    screening = about["screening"]
    shapes = plan.blocks(readout.width, readout.outputs)
    return Fitted(
        adapted=adapted,
        readout=readout,
        columns=columns,
        plan=plan,
        parts={
            name: [_unpacked(shapes[name], tensors, f"moments/{name}/{number}/") for number in range(count)]
            for name, count in about["moments"].items()
        },
        solution=solution,
        summary=summary,
        screening=None
        if screening is None
        else Screening(
            {
                (a, b): strength
                for (a, b), strength in zip(
                    tensors["screening/pairs"].tolist(), tensors["screening/strengths"].tolist(), strict=True
                )
            },
            screening["rows"],
            screening["forward_rows"],
        ),
        output_names=tuple(about["output_names"]),
        ridge=Ridge(*about["ridge"]),
        chooses_ridge=about["options"]["ridge"] == "auto",
        frame=None if about["frame"] is None else nw.Implementation.from_backend(about["frame"]),
        twins={int(feature): twin for feature, twin in about["twins"].items()},
        explained=tensors["explained"].numpy(),
        importance={kind: tensors[f"importance/{kind}"].numpy() for kind in ("main", "total")},
    )


def _counted(summary: Summary) -> dict[str, Counted]:
    """Values and counts by the names they have in the file."""
    found = {f"levels/{feature}": counted for feature, counted in summary.levels.items()}
    found |= {f"many/{feature}": counted for feature, counted in summary.many.items()}
    for feature, places in summary.codes.items():
        found |= {f"codes/{feature}/{place}": counted for place, counted in places.items()}
    return found


def _counts(tensors: Mapping[str, Tensor], kind: str) -> dict[tuple[int, ...], Counted]:
    """What `_counted` named, by the numbers in the names."""
    return {
        tuple(int(number) for number in name.split("/")[1:-1]): (tensors[name], tensors[f"{name[:-6]}counts"])
        for name in tensors
        if name.startswith(f"{kind}/") and name.endswith("/values")
    }


def _codes(tensors: Mapping[str, Tensor]) -> dict[int, dict[int, Counted]]:
    codes: dict[int, dict[int, Counted]] = {}
    for (feature, place), counted in _counts(tensors, "codes").items():
        codes.setdefault(feature, {})[place] = counted
    return codes


def _columns(features: Features, about: Mapping[str, Any]) -> Columns:
    return Columns(
        features,
        None if about["names"] is None else tuple(about["names"]),
        about["count"],
        _tuples(about["members"]),
        {int(k): v for k, v in about["text_levels"].items()},
        tuple(about["template"]),
        _tuples(about["ranges"]),
        {int(k): v for k, v in about["number_levels"].items()},
    )


def _encoded(adapted: Adapted, columns: Columns) -> Tensor:
    """What the preprocessing makes of some values of every feature: its fingerprint."""
    pieces = [torch.zeros(0, dtype=torch.float64)]
    for feature, members in enumerate(columns.members):
        if not columns.features.columns[feature]:
            continue
        levels = columns.text_levels.get(feature) or columns.number_levels.get(feature)
        if len(members) == 1:
            rows = np.array(levels or columns.ranges[members[0]], dtype=object)
        else:
            rows = np.array([[columns.template[member] for member in members]], dtype=object)
        pieces.append(input_values(columns, adapted, feature, rows).flatten())
    return torch.cat(pieces)


def _require_same_preprocessing(adapted: Adapted, columns: Columns, before: Tensor | None) -> None:
    if (adapted.encode is None) != (before is None):
        what = ("", "out") if before is None else ("out", "")
        raise ValueError(f"it comes with{what[0]} preprocessing, and calibration was with{what[1]}")
    if before is not None:
        now = _encoded(adapted, columns)
        if now.shape != before.shape or not torch.allclose(now, before, rtol=1e-9, atol=1e-12):
            raise ValueError("its preprocessing encodes the same values differently")


def _probe(isolation: Isolation, summary: Summary) -> Tensor:
    """A few rows to find the head with: the baseline, and each feature at its extremes or levels."""
    rows = [isolation.baseline]
    for feature, group in enumerate(isolation.features.columns[:64]):
        columns = list(group)
        levels = summary.levels[feature][0][:4] if feature in summary.levels else None
        if levels is None:
            levels = torch.stack([summary.minimum[columns], summary.maximum[columns]])
        for values in levels:
            row = isolation.baseline.clone()
            row[columns] = values
            rows.append(row)
    probe = torch.stack(rows)
    return probe.to(torch.int64) if torch.equal(probe, probe.round()) and _all_categories(isolation) else probe


def _all_categories(isolation: Isolation) -> bool:
    return len(isolation.categories) == len(isolation.features)


def _packed(part: Moments) -> dict[str, Tensor]:
    """A block's state with the upper half of its symmetric products."""
    state = part.state()
    index = torch.triu_indices(part.size, part.size)
    return {**state, "products": state["products"][index[0], index[1]]}


def _unpacked(blocks: Mapping[str, int], tensors: Mapping[str, Tensor], prefix: str) -> Moments:
    state = {key: tensors[prefix + key] for key in ("rows", "weight", "origin", "offset", "products")}
    size = sum(blocks.values())
    index = torch.triu_indices(size, size)
    products = torch.zeros(size, size, dtype=torch.float64)
    products[index[0], index[1]] = state["products"]
    products = products + products.triu(1).T
    return Moments.from_state(blocks, {**state, "products": products})


def _plain(name: str, value: Any, fitted: Fitted) -> Any:
    """An option as JSON can hold it."""
    if name == "head" and isinstance(value, nn.Module):
        return fitted.readout.head.name
    if name == "device" and value is not None:
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain("", inner, fitted) for key, inner in value.items()}
    if isinstance(value, str) or not isinstance(value, Iterable):
        return value.item() if isinstance(value, np.generic) else value
    if hasattr(value, "tolist"):  # arrays, tensors, and the columns and indices of frames
        return value.tolist()
    return [_plain("", inner, fitted) for inner in value]


def _tuples(nested: Sequence[Sequence[Any]]) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(inner) for inner in nested)
