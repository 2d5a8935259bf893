"""A script as a user writes it; type checkers read it against the installed package, and nobody runs it."""

from pathlib import Path
from typing import assert_type

import numpy as np
import torch

import nobsp


def explain_a_table(model: torch.nn.Module, rows: torch.Tensor) -> float:
    explainer = nobsp.NObSP(model, features=["a", "b", "c"], interactions=0).fit(rows)
    assert_type(explainer, nobsp.NObSP)

    health = explainer.health()
    assert_type(health, nobsp.Health)
    for finding in health.findings:
        assert_type(finding, nobsp.Finding)
        assert_type(finding.code, str)

    explanation = explainer(rows[:5])
    assert_type(explanation, nobsp.Explanation)
    account = explanation.base_values + explanation.values.sum(1) + explanation.residual
    functions = explainer.compile()
    assert_type(functions, nobsp.Functions)
    functions.save(Path("functions.nobsp"))
    nobsp.report(explanation, "page.html")
    return float(np.abs(account - explanation.predictions).max())


def look_at_images(network: torch.nn.Module, images: torch.Tensor) -> int:
    cam = nobsp.NObSPCam(network).fit(images)
    maps = cam(images[:8], target=3)
    assert_type(maps, nobsp.ActivationMaps)

    index = nobsp.ContributionIndex(cam).fit(images, [0] * len(images))
    hits = index.query(images[:4], k=3)
    assert_type(hits, nobsp.Neighbors)
    found = nobsp.audit(index)
    assert_type(found, nobsp.Audit)
    return len(found.flagged) + len(maps)


def misuse(model: torch.nn.Module) -> None:
    # Mistakes that a type checker must find: were they let through, the ignores would be unused, which is an error.
    nobsp.NObSP(model, reference="both")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    nobsp.NObSP(model).fitt  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # noqa: B018
