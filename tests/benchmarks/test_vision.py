"""The pieces of the vision benchmarks that can be checked without trained weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.vision import judging, scenes
from benchmarks.vision.candidates import (
    ACCOUNT,
    CANDIDATES,
    CHOSEN,
    PAPER,
    Seen,
    blurred,
    both,
    one_by_one,
    resized,
    seen_by,
    taken_out,
)
from benchmarks.vision.judging import Judge
from benchmarks.vision.networks import (
    SETTINGS,
    EfficientNetLite0,
    Normalised,
    ResNet18ForSmallImages,
    ResNet20,
    Setting,
)
from benchmarks.vision.quoted import DELETION, METHODS, PIXELS, SPARSENESS
from benchmarks.vision.scenes import Effort, Remembering
from benchmarks.vision.statistics import judged
from benchmarks.vision.transfer import Network, ten_way
from nobsp.vision import NObSPCam
from nobsp.vision.find_map import find_map
from tests.tolerances import CONTRIBUTIONS
from tests.vision.networks import averaged, images


def sharp() -> nn.Module:
    model = averaged()
    model.head.weight.data *= 20  # type: ignore[union-attr,operator]
    return model


@pytest.fixture(scope="module")
def seen() -> Seen:
    x = images(5, seed=1)
    cam = NObSPCam(sharp()).fit(images(40))
    (found,) = seen_by(cam, x, np.array([0, 1, 2, 3, 0]), earlier=lambda: cam)
    return found


# ---------------------------------------------------------------------- networks


def test_networks_have_the_published_sizes() -> None:
    sizes = {
        EfficientNetLite0(): 4_652_008,
        ResNet18ForSmallImages(classes=10): 11_173_962,
        ResNet20(10): 269_722,
    }
    for network, size in sizes.items():
        assert sum(weight.numel() for weight in network.parameters()) == size


def test_padding_halves_even_sizes_exactly() -> None:
    with torch.no_grad():
        assert EfficientNetLite0().eval().conv_stem(torch.zeros(1, 3, 65, 64)).shape[2:] == (33, 32)


def test_the_odd_pixel_of_padding_goes_right_and_below() -> None:
    stem = EfficientNetLite0().eval().conv_stem
    x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    expected = nn.functional.conv2d(nn.functional.pad(x, (0, 1, 0, 1)), stem.weight, stride=2)
    with torch.no_grad():
        torch.testing.assert_close(stem(x), expected)


def test_their_maps_are_found() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 64, 64)
    assert find_map(EfficientNetLite0().eval(), x).layer == "act"
    assert find_map(ResNet18ForSmallImages(classes=10).eval(), x[..., :32, :32]).layer == "layer4"
    assert find_map(ResNet20(classes=10).eval(), x[..., :32, :32]).layer == "layer3"


def test_cutting_a_head_keeps_the_logits_of_the_classes_that_stay() -> None:
    whole = Normalised(ResNet20(classes=10), (0.0,) * 3, (1.0,) * 3).eval()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = whole(x)
    cut = ten_way(lambda: Setting("", whole, "cifar10", (7, 2, 5), "", ""))
    with torch.no_grad():
        torch.testing.assert_close(cut.model(x), before[:, [7, 2, 5]])
    assert cut.classes == (0, 1, 2)


def test_missing_weights_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOBSP_DATA", raising=False)
    with pytest.raises(
        FileNotFoundError, match=r"set NOBSP_DATA to a folder that has weights/resnet18_cifar10"
    ):
        SETTINGS["resnet18"]()


# ---------------------------------------------------------------------- candidates


def test_candidates_that_the_library_offers_are_the_librarys(seen: Seen) -> None:
    calibration, target = images(40), seen.target.numpy()
    head = NObSPCam(sharp(), coefficients="head").fit(calibration)
    expected = {
        PAPER: NObSPCam(sharp()).fit(calibration)(seen.images, target).positive,
        ACCOUNT: head(seen.images, target).account,
        "account against the others": head(seen.images, target, against="others").account,
        "account against the runner-up": head(seen.images, target, against="runner-up").account,
        "account against the mean": head(seen.images, target, against="mean").account,
        "account of the probability": head(seen.images, target, scale="probability").account,
        CHOSEN: 64 * head.removal(seen.images, target).importance,
    }
    for name, maps in expected.items():
        np.testing.assert_allclose(
            CANDIDATES[name](seen), maps, rtol=1e-9, atol=CONTRIBUTIONS, err_msg=name
        )


@pytest.mark.parametrize("baseline", ["mean", "zero", "blank"])
def test_taking_a_location_out_is_what_the_head_does_without_it(seen: Seen, baseline: Any) -> None:
    fallen = taken_out(baseline)(seen)
    changed = seen.maps.clone()
    changed[:, :, 2, 3] = seen.reference(baseline).expand_as(changed[0])[:, 2, 3]
    before, after = (maps.mean((2, 3)) @ seen.weight.T + seen.bias for maps in (seen.maps, changed))
    own = seen.target[:, None]
    odds = [
        p.log() - (1 - p).log()
        for p in (one.softmax(1).gather(1, own)[:, 0] for one in (before, after))
    ]
    torch.testing.assert_close(fallen[:, 2, 3], odds[0] - odds[1], rtol=1e-6, atol=1e-9)


def test_one_by_one_begins_with_the_location_that_matters_most_and_takes_all(seen: Seen) -> None:
    order, fallen = one_by_one("mean")(seen).flatten(1), taken_out("mean")(seen).flatten(1)
    assert torch.equal(order.argmax(1), fallen.argmax(1))
    assert torch.equal(
        order.sort(1).values, torch.arange(1.0, 65.0, dtype=torch.float64).expand(5, -1)
    )


@pytest.mark.parametrize(
    "name", [name for name in CANDIDATES if name not in ("earlier layer", "both layers")]
)
def test_every_candidate_gives_one_finite_map_an_image(seen: Seen, name: str) -> None:
    maps = CANDIDATES[name](seen)
    assert maps.shape == (5, 8, 8)
    assert bool(torch.isfinite(maps).all())


def test_smoothing_keeps_a_constant() -> None:
    torch.testing.assert_close(blurred(torch.full((2, 4, 5), 3.0)), torch.full((2, 4, 5), 3.0))


def test_two_layers_are_combined_on_the_finer_grid(seen: Seen) -> None:
    generator = torch.Generator().manual_seed(0)
    late, early = (torch.randn(2, side, side, generator=generator) for side in (3, 6))
    combined = both(lambda _: late, lambda _: early, 0.0)(seen)
    coarse = resized(late, (6, 6))
    torch.testing.assert_close(combined, coarse / coarse.std((1, 2), keepdim=True))


# ---------------------------------------------------------------------- judging


class Counting(nn.Module):
    """Counts the images it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.network = averaged(dtype=torch.float32)
        self.shown = 0

    def forward(self, x: Tensor) -> Tensor:
        self.shown += len(x)
        result: Tensor = self.network(x)
        return result


def test_an_image_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.jit, "trace", lambda model, _: model)
    monkeypatch.setattr(torch.jit, "optimize_for_inference", lambda model: model)
    model = Counting().eval()
    x = images(6, dtype=torch.float32)
    run = Remembering(model, x[:2])
    first = run(torch.cat([x, x[:3]]).numpy())
    again = run(x.flip(0).numpy())
    assert model.shown == 6
    np.testing.assert_array_equal(first[:6], again[::-1])
    np.testing.assert_allclose(again[::-1], model.network(x).detach(), rtol=1e-6)


def test_the_faster_copy_says_the_same() -> None:
    model, x = ResNet20(classes=10).eval(), images(11, size=32, dtype=torch.float32)
    with torch.no_grad():
        np.testing.assert_allclose(
            Remembering(model, x[:8])(x.numpy()), model(x).numpy(), rtol=1e-4, atol=1e-5
        )


class Pile:
    """Images as `load_images` gives them."""

    def __init__(self, array: NDArray[np.float32]) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def subset(self, rows: NDArray[np.int64]) -> Pile:
        return Pile(self._array[rows])

    def array(self) -> NDArray[np.float32]:
        return self._array


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark of one small network."""

    def make() -> Setting:
        model = Normalised(averaged(dtype=torch.float32), (0.0,) * 3, (1.0,) * 3).eval()
        return Setting("small", model, "noise", (0, 1, 2, 3), "network.body", "network.body.1")

    piles = {
        "train": Pile(images(30, dtype=torch.float32).numpy()),
        "val": Pile(images(9, seed=1).float().numpy()),
    }
    monkeypatch.setattr(scenes, "load_images", lambda _, *, split, size: piles[split])
    monkeypatch.setattr(judging, "NETWORKS", {"small": Network("small", make, None, "")})


EFFORT = Effort(train=4, val=5, calibration=30, pixels=3, runs=6)


@pytest.mark.usefixtures("small")
def test_what_has_been_judged_is_not_judged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Judge(EFFORT, folder=tmp_path)
    kept = before.scores("small", "val", CHOSEN), before.faithfulness("small", ACCOUNT)
    monkeypatch.setattr(judging, "Scene", None)
    after = Judge(EFFORT, folder=tmp_path)
    np.testing.assert_array_equal(after.scores("small", "val", CHOSEN).auc, kept[0].auc)
    np.testing.assert_array_equal(after.faithfulness("small", ACCOUNT), kept[1])
    assert len(kept[0].auc) == len(kept[0].gini) == 5


@pytest.mark.usefixtures("small")
def test_new_code_that_ranks_regions_alike_needs_no_new_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Judge(EFFORT, folder=tmp_path).scores("small", "val", ACCOUNT)
    monkeypatch.setattr(judging, "rooms", lambda *_: "edited")
    monkeypatch.setattr(judging, "region_deletion_auc", None)
    np.testing.assert_array_equal(
        Judge(EFFORT, folder=tmp_path).scores("small", "val", ACCOUNT).auc, before.auc
    )


@pytest.mark.usefixtures("small")
def test_images_shown_and_images_calibrated_on_are_of_different_splits() -> None:
    scene = Judge(EFFORT, folder=None)._scene("small", "val")
    shown = {image.numpy().tobytes() for image in scene.images}
    assert len(shown) == 5
    assert not shown & {
        image.numpy().tobytes() for batch in scene._batches("train", 30) for image in batch
    }


# ---------------------------------------------------------------------- figures


def test_the_quoted_rows_have_the_means_the_paper_states() -> None:
    means = {method: np.mean([row[method] for row in DELETION.values()]) for method in METHODS}
    assert [round(float(mean), 3) for mean in means.values()] == pytest.approx(
        [0.606, 0.597, 0.572, 0.594], abs=1.1e-3
    )
    assert (len(DELETION), len(SPARSENESS), len(PIXELS)) == (24, 9, 9)


def test_tests_are_corrected_for_their_number() -> None:
    rng = np.random.default_rng(0)
    rows = judged({"none": rng.normal(0.0, 1.0, 60), "some": rng.normal(0.6, 1.0, 60)})
    assert rows["some"][4] == pytest.approx(2 * rows["some"][3])  # type: ignore[operator]
    assert rows["some"][4] < 0.01 < rows["none"][4]  # type: ignore[operator]
