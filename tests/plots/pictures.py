"""Every plot once, on subjects that do not change: what the images in `baseline` show."""

import warnings
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

import nobsp
from nobsp import NObSP, NObSPCam, plots
from nobsp.findings import Finding
from nobsp.tabular import Health, TermHealth
from tests.plots.subjects import Known, account, rows_of_known


def explainer(outputs=1, rows=400, **options):
    names, pair = ["age", "income", "rooms"], ("age", "income")
    settled = {
        "features": names,
        "interactions": [pair],
        "output_names": ["price", "risk"][:outputs],
    }
    return NObSP(Known(outputs), **settled | options).fit(rows_of_known(rows))


def comparison():
    """Old and new rows, which are older."""
    fitted, rows = explainer(), rows_of_known(400)
    moved = rows[:200].clone() if hasattr(rows, "clone") else np.array(rows[:200])
    moved[:, 0] += 0.5
    return nobsp.compare(fitted(moved), fitted(rows[200:]), names=("new", "old"), draws=100)


def curves():
    # Without the pair and on few rows the bands are wide.
    rough = explainer(rows=60, interactions=0)
    return plots.curves(rough, truth={"age": np.abs, "rooms": lambda x: x})


def curves_of_two_outputs():
    return plots.curves(explainer(2), ["age", "rooms"])


def importance():
    return plots.importance(account(outputs=3))


def waterfall():
    return plots.waterfall(account(), row=0, max_display=4)


def beeswarm():
    return plots.beeswarm(account())


def ledger():
    return plots.ledger(account(outputs=3))


def interaction():
    return plots.interaction(explainer(), ("age", "income"), points=40)


def interaction_matrix():
    return plots.interaction_matrix(explainer(interactions=1))


def series(**options):
    """A model of (n, time, channels): the middle of the first channel, and the end of the second with it."""

    class Watch(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 1, dtype=torch.float64)
            with torch.no_grad():
                self.head.weight.copy_(torch.tensor([[1.0, -0.6, 0.8]]))

        def forward(self, series):
            middle, end = series[:, 3:6, 0].mean(1), series[:, 9:, 1].mean(1)
            return self.head(torch.stack([middle, end, middle * end], 1))

    X = torch.from_numpy(np.random.default_rng(0).normal(size=(200, 12, 2)))
    parts = {f"{t}, {c}": ("series", slice(t, t + 3), c) for c in (0, 1) for t in (0, 3, 6, 9)}
    options = {
        "features": parts,
        "interactions": [("3, 0", "9, 1")],
        "output_names": ["risk"],
    } | options
    return NObSP(Watch(), background=8, **options).fit({"series": X})({"series": X})


def windows():
    return plots.windows(series(), 3, channels=["pulse", "breath"])


def health():
    terms = tuple(TermHealth((name,), 3, share) for name, share in (("age", 0.4), ("rooms", 0.004)))
    findings = (
        Finding("note", "constant", "income", "No term that contains it varies."),
        Finding(
            "error",
            "worse_than_mean",
            "risk",
            "Held-out R² is -0.100: worse than the mean. Do not use it.",
        ),
        Finding(
            "warning", "dependent", "rooms", "It goes along with 'age': group them as one feature."
        ),
    )
    return plots.health(Health(findings, terms, (0.971, -0.1), (0.985, 0.3), 0.02, 400, 12))


def images():
    """Six pictures of a bright square, each in another place."""
    pictures = np.full((6, 1, 12, 12), 0.2, dtype=np.float32)
    for place, picture in enumerate(pictures):
        picture[0, 1 + place : 5 + place, 6 - place : 10 - place] = 0.9
    return torch.from_numpy(pictures)


def cam_grid():
    body = nn.Conv2d(1, 2, 3, padding=1)
    head = nn.Linear(2, 2)
    with torch.no_grad():
        body.weight[0], body.weight[1] = torch.full((1, 3, 3), 0.2), torch.full((1, 3, 3), -0.2)
        body.bias.copy_(torch.tensor([0.0, 1.0]))
        head.weight.copy_(torch.tensor([[1.0, 1.2], [-1.0, 0.0]]))
        head.bias.zero_()
    model = nn.Sequential(body, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    cam = NObSPCam(model, coefficients="head", output_names=["square", "dark"])
    with (
        warnings.catch_warnings()
    ):  # a square is as bright in any place, and the model says the same
        warnings.simplefilter("ignore")
        cam.fit(0.5 * images())
    kinds = ("contrast", "positive", "negative", "signed")
    return plots.cam_grid(
        cam(images()[:2], target=0), images()[:2], kinds=kinds, labels=["square", "dark"]
    )


def hits(space):
    return SimpleNamespace(
        indices=np.array([[1, 2, 4]]),
        distances=np.array([[0.21, 0.35, 0.62]]),
        labels=np.array([["cat", "dog", "cat"]]),
        predicted=np.array(["cat"]),
        confidence=np.array([0.62]),
        space=space,
    )


def retrieval_panel():
    found = hits("contributions"), hits("activations")
    return plots.retrieval_panel(images()[0], *found, database=images(), label="dog")


def retrieval_of_a_table():
    return plots.retrieval_panel(account().data, hits("contributions"), database=account().data)


# Per plot, what must not be missing: parts whose absence an image comparison has to notice.
PLOTS = {
    curves: ("function", "band", "truth", "baseline", "rows"),
    curves_of_two_outputs: ("function",),
    importance: ("residual", "main"),
    waterfall: ("residual", "for", "against"),
    beeswarm: ("residual",),
    ledger: ("residual",),
    windows: ("windows", "against"),
    interaction: ("no rows", "rows"),
    interaction_matrix: ("fitted",),
    health: ("share", "inside"),
    cam_grid: ("contrast", "positive", "negative", "signed"),
    retrieval_panel: (),
    retrieval_of_a_table: ("far",),
}
