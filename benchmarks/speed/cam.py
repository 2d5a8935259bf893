"""How long class activation maps take to calibrate, and what they add to a forward pass.

Calibration is timed from pooled features, in batches of 32 as they come from a loader: moments of the channels, then
all channels and classes from one factorisation. The overhead is a call of the explainer on a batch of 32 images at
224×224 against the network's own forward pass on the same batch, in turn; weights are random, which changes no time.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import torch

from benchmarks.architectures import architecture
from benchmarks.report import Column, Race, Report, Table, options, progress, publish, race, seconds
from benchmarks.speed.ratios import Ratio, raced, seconds_of
from nobsp.projection import Moments, Ridge, channel_coefficients
from nobsp.vision import NObSPCam
from nobsp.vision.means import with_outputs

SEED, ROWS, CHANNELS, OUTPUTS, BATCH, SIDE = 0, 2000, 1280, 200, 32, 224
NETWORKS = {"resnet18": "layer4", "mobilenet_v2": "features"}


def calibrate(features: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Moments of the channels batch by batch, then the coefficients."""
    moments = Moments({"channels": features.shape[1]})
    for batch in features.split(BATCH):
        moments.update(batch)
    return channel_coefficients(
        with_outputs(moments, weight.double()), ridge=Ridge(1e-4, "absolute")
    ).coefficients


def overhead(name: str, repeats: int) -> tuple[Race, float]:
    """A call of the explainer against the forward pass, and the size of the explainer's file in megabytes."""
    model = architecture(name, classes=OUTPUTS)
    images = torch.randn(BATCH, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(SEED))
    cam = NObSPCam.as_published(model).fit(images)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cam.safetensors"
        cam.save(path)
        size = path.stat().st_size / 1e6

    def forward() -> None:
        with torch.no_grad():
            model(images)

    return race(lambda: cam(images), forward, repeats=repeats), size


def calibrations(repeats: int) -> list[float]:
    """Seconds of calibrating from pooled features, after a warm-up."""
    generator = torch.Generator().manual_seed(SEED)
    common = (
        torch.randn(ROWS, 16, generator=generator)
        @ torch.randn(16, CHANNELS, generator=generator)
        / 4
    )
    features = (common + torch.randn(ROWS, CHANNELS, generator=generator)).relu()
    weight = torch.randn(OUTPUTS, CHANNELS, generator=generator) / CHANNELS**0.5
    progress("maps: calibration from features")
    calibrate(features, weight)
    return [seconds(lambda: calibrate(features, weight)) for _ in range(repeats)]


def ratios(*, quick: bool) -> list[Ratio]:
    """For the table of all speeds."""
    times = calibrations(2 if quick else 5)
    what = f"calibrate {CHANNELS:,} channels × {OUTPUTS} classes from pooled features of {ROWS:,} images"
    found = [
        Ratio(
            what,
            seconds_of(times),
            "the 2 s allowed",
            tuple(t / 2 for t in times),
            1.0,
            least=False,
        )
    ]
    for name in ["resnet18"] if quick else NETWORKS:
        progress(f"maps: {name}, explainer against forward pass")
        run, _ = overhead(name, 2 if quick else 31)
        what = f"maps of {BATCH} images at {SIDE}×{SIDE}, {name}"
        target = 1.03 if name == "resnet18" else None
        found.append(
            raced(what, run.first, "the forward pass alone", run.second, target=target, cost=True)
        )
    return found


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0], threads=True)
    chosen = parser.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    calibration = statistics.median(calibrations(3 if chosen.quick else 9))
    rows = []
    for name in NETWORKS:
        progress(f"{name}: explainer against forward pass")
        found, size = overhead(name, 3 if chosen.quick else 15)
        ours, forward = found.medians
        rows.append((name, 1e3 * forward, 1e3 * ours, 100 * (found.ratio - 1), size))
    report = Report(
        name="speed-cam",
        title="Class activation maps: calibration and overhead",
        tables=(
            Table(
                f"A batch of {BATCH} images at {SIDE}×{SIDE}",
                (
                    Column("network"),
                    Column("forward, ms", ".0f"),
                    Column("maps, ms", ".0f"),
                    Column("overhead, %", ".1f"),
                    Column("file, MB", ".2f"),
                ),
                tuple(rows),
                f"Overhead is the median over pairs of runs taken in turn. The file is for {OUTPUTS} classes.",
            ),
        ),
        findings=(
            f"From the pooled features of {ROWS} images, {CHANNELS} channels and {OUTPUTS} classes are calibrated in "
            f"{calibration:.2f} s (the paper: 14 to 25 minutes at this width, on a GPU).",
        ),
        seeds=(SEED,),
        settings={"rows": ROWS, "channels": CHANNELS, "outputs": OUTPUTS},
        packages=("torchvision",),
    )
    publish(report, chosen)


if __name__ == "__main__":
    main()
