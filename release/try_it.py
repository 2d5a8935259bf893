"""Tries an installed nobsp the way a user meets it, with what is installed and nothing else.

python release/try_it.py --extras plot,report
"""

import argparse
import tempfile
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import numpy as np
import torch

import nobsp

# Of this package; what old versions of others say of each other's is theirs.
warnings.filterwarnings("error", module="nobsp")
warnings.filterwarnings("ignore", message="Please use the new API settings to control TF32")


def make_table() -> tuple[torch.nn.Module, torch.Tensor]:
    """A small network and rows for it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    return model, torch.randn(400, 3)


def try_core(folder: Path) -> None:
    """A table, an image, neighbours, files."""
    model, X = make_table()
    explainer = nobsp.NObSP(model, interactions=0).fit(X)
    explanation = explainer(X[:20])
    account = explanation.base_values + explanation.values.sum(1) + explanation.residual
    assert np.abs(account - explanation.predictions).max() < 1e-9

    explainer.save(folder / "explainer.nobsp")
    again = nobsp.NObSP.load(folder / "explainer.nobsp", model)(X[:20])
    assert np.abs(again.values - explanation.values).max() < 1e-6
    explainer.compile().explain(X[:5].numpy(), predictions=explanation.predictions[:5])

    labels = explainer(X).predictions.argmax(1)
    nobsp.audit(nobsp.ContributionIndex(explainer).fit(X, labels))

    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 4),
    )
    images = torch.rand(32, 3, 16, 16)
    assert nobsp.NObSPCam(network).fit(images)(images[:4]).account.shape == (4, 14, 14)


def try_plot(folder: Path) -> None:
    """A picture of a curve."""
    import matplotlib as mpl

    mpl.use("Agg")
    model, X = make_table()
    explainer = nobsp.NObSP(model, interactions=0).fit(X)
    nobsp.plots.curves(explainer, output=0)[0].figure.savefig(folder / "curves.png")
    explainer(X[:20]).plot.waterfall(0, output=0)


def try_images(folder: Path) -> None:
    """Images from files."""
    from PIL import Image

    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 4),
    )
    files = sorted(folder.glob("?.png"))
    assert len(nobsp.explain_images(network, files)) == len(files)


def try_report(folder: Path) -> None:
    """A page."""
    model, X = make_table()
    explainer = nobsp.NObSP(model, interactions=0).fit(X)
    nobsp.report(explainer(X[:20]), folder / "page.html")
    assert (folder / "page.html").stat().st_size > 10_000


def try_frames(_: Path) -> None:
    """Frames in, frames out."""
    import pandas as pd
    import polars as pl

    model, X = make_table()
    for make in (pd.DataFrame, pl.DataFrame):
        table = make({name: X[:, at].numpy() for at, name in enumerate("abc")})
        account = nobsp.NObSP(model, interactions=0).fit(table)(table).to_frame(output=0)
        assert isinstance(account, make)


def try_ann(_: Path) -> None:
    """Approximate neighbours."""
    model, X = make_table()
    explainer = nobsp.NObSP(model, interactions=0).fit(X)
    index = nobsp.ContributionIndex(explainer, backend="usearch").fit(X)
    assert index.query(X[:3], k=4).indices.shape == (3, 4)


def try_skops(folder: Path) -> None:
    """A model of scikit-learn without pickle."""
    import skops.io
    from sklearn.linear_model import LinearRegression

    X = np.random.default_rng(0).normal(size=(200, 2))
    model = LinearRegression().fit(X, X.sum(1))
    skops.io.dump(model, folder / "model.skops")
    nobsp.NObSP(skops.io.load(folder / "model.skops")).fit(X)


def try_milvus(folder: Path) -> None:
    """Neighbours from a database in a file."""
    model, X = make_table()
    explainer = nobsp.NObSP(model, interactions=0).fit(X)
    backend = nobsp.Milvus(uri=str(folder / "rows.db"))
    index = nobsp.ContributionIndex(explainer, backend=backend).fit(X)
    assert index.query(X[:3], k=4).indices.shape == (3, 4)


def try_ray(_: Path) -> None:
    """Calibration in the workers of a cluster, here of one."""
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    model, X = make_table()
    explainer = nobsp.NObSP(model, interactions=0).fit(ray.data.from_numpy(X.numpy()))
    ray.shutdown()
    assert explainer.health().rows == len(X)


def try_onnx(folder: Path) -> None:
    """Functions as a graph."""
    import onnx

    model, X = make_table()
    nobsp.NObSP(model, interactions=0).fit(X).compile().to_onnx(folder / "functions.onnx")
    onnx.checker.check_model(folder / "functions.onnx")


def try_excel(folder: Path) -> None:
    """Functions as a workbook."""
    import openpyxl

    model, X = make_table()
    functions = nobsp.NObSP(model, interactions=0).fit(X).compile()
    functions.to_excel(folder / "functions.xlsx", X[:3].numpy())
    assert openpyxl.load_workbook(folder / "functions.xlsx").sheetnames


PARTS: dict[str, Callable[[Path], None]] = {
    "plot": try_plot,
    "images": try_images,
    "report": try_report,
    "frames": try_frames,
    "ann": try_ann,
    "milvus": try_milvus,
    "ray": try_ray,
    "skops": try_skops,
    "onnx": try_onnx,
    "excel": try_excel,
}


def main() -> None:
    """Tries the core and the extras asked for, each in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", default="", help=f"some of {','.join(PARTS)}")
    asked = [name for name in parser.parse_args().extras.split(",") if name]

    assert metadata.version("nobsp") == nobsp.__version__
    for name, part in {"core": try_core, **{name: PARTS[name] for name in asked}}.items():
        with tempfile.TemporaryDirectory() as folder:
            part(Path(folder))
        print(f"{name}: works with nobsp {nobsp.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
