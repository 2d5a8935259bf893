"""Labels of images that lie in one folder per class come with the folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from nobsp import ContributionIndex, NObSPCam, audit

CLASSES = ("ash", "elm", "oak")
PER_CLASS = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Grey images, darker or brighter by class, one folder each."""
    folder = tmp_path_factory.mktemp("trees")
    rng = np.random.default_rng(0)
    for number, name in enumerate(CLASSES):
        (folder / name).mkdir()
        for image in range(PER_CLASS):
            pixels = 60 * number + rng.integers(0, 60, size=(8, 8))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{image:02d}.png")
    return folder


def cam_of(folder: Path, names: tuple[str, ...] | None) -> NObSPCam:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return NObSPCam(nn.Sequential(body, nn.Linear(6, 3)), output_names=names).fit(folder)


@pytest.mark.parametrize("names", [CLASSES, None])
def test_a_folder_brings_its_labels_to_an_index_and_to_an_audit(
    folder: Path, names: tuple[str, ...] | None
) -> None:
    index = ContributionIndex(cam_of(folder, names)).fit(folder)

    found = audit(index)
    assert found.labels is not None
    assert found.labels.tolist() == list(np.repeat(CLASSES, PER_CLASS))
    assert set(found.predicted.tolist()) <= set(CLASSES)

    of_others = audit(index, folder)
    assert of_others.labels is not None
    assert of_others.labels.tolist() == found.labels.tolist()
    assert len(index.add(folder)) == 2 * len(found)


def test_folders_follow_the_order_of_named_outputs(folder: Path) -> None:
    turned = CLASSES[::-1]
    found = audit(ContributionIndex(cam_of(folder, turned)).fit(folder))
    numbered = audit(
        ContributionIndex(cam_of(folder, turned)).fit(folder, np.repeat([2, 1, 0], PER_CLASS))
    )
    assert [turned[number] for number in numbered.predicted] == found.predicted.tolist()
    assert [turned[number] for number in numbered.labels] == list(found.labels)


def test_folders_that_are_no_classes_bring_no_labels(folder: Path) -> None:
    index = ContributionIndex(cam_of(folder, ("cat", "dog", "owl"))).fit(folder)
    with pytest.raises(ValueError, match="labels"):
        audit(index)


@pytest.mark.parametrize(
    ("names", "brings_labels"),
    [
        (("0", "1", "2"), True),
        (("2", "10", "20"), False),  # as names, "10" comes first
        (("a/train", "b/train", "c/train"), False),  # folders in these may be the classes
    ],
)
def test_folders_that_could_mean_other_classes_bring_no_labels(
    folder: Path, tmp_path: Path, names: tuple[str, ...], brings_labels: bool
) -> None:
    for name, original in zip(names, CLASSES, strict=True):
        shutil.copytree(folder / original, tmp_path / name)
    index = ContributionIndex(cam_of(tmp_path, None)).fit(tmp_path)
    if brings_labels:
        assert set(audit(index).labels.tolist()) == set(names)
        return
    with pytest.raises(ValueError, match="labels"):
        audit(index)
