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
from nobsp.network.readout import Readout
from nobsp.network.summary import Summary
from nobsp.projection import Moments, Ridge
from nobsp.tabular.calibration import Plan, Solution, label
from nobsp.tabular.columns import Columns, input_values
from nobsp.tabular.fitted import Fitted
from nobsp.tabular.interactions import Screening
from nobsp.tabular.representations import Isolation

KIND = "tabular explainer"
VERSION = 1

Restore = Callable[[Adapted, Callable[[Tensor], Readout]], Fitted]


def save(path: str | os.PathLike[str], fitted: Fitted, options: Mapping[str, Any], *, moments: bool) -> None:
    """Writes a calibration; see `NObSP.save`."""
    plan, solution, summary = fitted.plan, fitted.solution, fitted.summary
    tensors: dict[str, Tensor] = {
        "baseline": plan.isolation.baseline,
        "base": solution.base,
        "summary/mean": summary.mean,
        "summary/minimum": summary.minimum,
        "summary/maximum": summary.maximum,
        "explained": torch.from_numpy(fitted.explained.copy()),
    }
    for kind, sizes in fitted.importance.items():
        tensors[f"importance/{kind}"] = torch.from_numpy(sizes.copy())
    for feature, (levels, counts) in summary.levels.items():
        tensors[f"levels/{feature}/values"], tensors[f"levels/{feature}/counts"] = levels, counts
    for term in plan.terms:
        tensors[f"basis/{label(term)}"] = plan.bases[term]
        tensors[f"matrix/{label(term)}"] = solution.matrices[term]
        tensors[f"offset/{label(term)}"] = solution.offsets[term]
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
        "ridges": [solution.ridges[term] for term in plan.terms],
        "unique_share": [solution.unique_share[term] for term in plan.terms],
        "notes": {label(term): text for term, text in solution.notes.items()},
        "note": solution.note,
        "rows": fitted.summary.rows,
        "output_names": fitted.output_names,
        "frame": None if fitted.frame is None else str(fitted.frame.value),
        "twins": {str(feature): twin for feature, twin in fitted.twins.items()},
        "screening": None
        if screening is None
        else {
            "pairs": [[*pair, strength] for pair, strength in screening.strengths.items()],
            "rows": screening.rows,
            "forward_rows": screening.forward_rows,
        },
        "moments": {name: len(blocks) for name, blocks in fitted.parts.items()} if moments else {},
    }


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Restore]:
    """The options a calibration was made with, and how to bring it back to life with its model."""
    tensors, about = store.load(path, kind=KIND, version=VERSION)

    def restore(adapted: Adapted, find: Callable[[Tensor], Readout]) -> Fitted:
        return _restored(tensors, about, adapted, find)

    if "options" not in about:
        raise ValueError(f"path {str(path)!r} lacks the explainer's options; save it anew.")
    return dict(about["options"]), restore


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
        {
            int(name.split("/")[1]): (tensors[name], tensors[name.replace("values", "counts")])
            for name in tensors
            if name.startswith("levels/") and name.endswith("/values")
        },
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
            {(a, b): strength for a, b, strength in screening["pairs"]},
            screening["rows"],
            screening["forward_rows"],
        ),
        output_names=tuple(about["output_names"]),
        ridge=Ridge(about["options"]["ridge"], about["options"]["ridge_scale"]),
        frame=None if about["frame"] is None else nw.Implementation.from_backend(about["frame"]),
        twins={int(feature): twin for feature, twin in about["twins"].items()},
        explained=tensors["explained"].numpy(),
        importance={kind: tensors[f"importance/{kind}"].numpy() for kind in ("main", "total")},
    )


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
