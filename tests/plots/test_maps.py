"""Images beside their maps."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn

from nobsp import NObSPCam, plots


@pytest.fixture(scope="module")
def images():
    return torch.rand(5, 3, 12, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def cam(images):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(body, nn.Linear(6, 3))
    return NObSPCam(model, coefficients="head", output_names=["cat", "dog", "cow $1$"]).fit(images)


PAPER = ("positive", "negative", "signed")


def map_on(ax):
    """What is laid over the image: colours and how strongly."""
    [picture] = [image for image in ax.images if image.get_gid() is not None]
    return np.asarray(picture.get_array())


def test_every_image_is_a_row_of_panels(cam, images):
    maps = cam(images)
    grid = plots.cam_grid(maps, images)
    assert grid.shape == (5, 3)
    titles = [ax.get_title().replace("\n", " ") for ax in grid[0]]
    assert titles == ["image", maps.caption("contrast"), maps.caption("account")]
    assert np.asarray(grid[2, 0].images[0].get_array()) == pytest.approx(
        images[2].permute(1, 2, 0).numpy(), abs=1e-6
    )


def test_rows_tell_class_and_confidence(cam, images):
    maps = cam(images, target=1)
    for image, ax in enumerate(plots.cam_grid(maps, images)[:, 0]):
        name, share = ax.get_ylabel().split("\n")
        assert name == "dog"
        assert float(share.rstrip("%")) == pytest.approx(100 * maps.confidence[image], abs=0.5)


def test_a_true_class_is_told_where_it_is_another(cam, images):
    maps = cam(images, target=1)
    rows = plots.cam_grid(maps, images, labels=torch.tensor([1, 0, 1, 1, 1]))[:, 0]
    assert ["is cat" in ax.get_ylabel() for ax in rows] == [False, True, False, False, False]
    assert (
        "is cat"
        in plots.cam_grid(maps, images, labels=["dog", "cat", "dog", "dog", "dog"])[
            1, 0
        ].get_ylabel()
    )


def test_colour_is_as_strong_as_the_map(cam, images):
    maps = cam(images)
    large = maps.resize((12, 16))
    [_, positive, negative, signed] = plots.cam_grid(maps, images, kinds=PAPER, opacity=1.0)[0]
    scale = max(large.positive[0].max(), large.negative[0].max())
    assert map_on(positive)[..., 3] == pytest.approx(large.positive[0] / scale)
    assert map_on(negative)[..., 3] == pytest.approx(large.negative[0] / scale)
    assert map_on(signed)[..., 3] == pytest.approx(np.abs(large.signed[0]) / scale)


def test_evidence_for_and_against_differ_in_colour(cam, images):
    maps = cam(images)
    signed = map_on(plots.cam_grid(maps, images, kinds=PAPER)[0, 3])
    pro = maps.resize((12, 16)).signed[0] > 0
    assert pro.any()
    assert not pro.all()
    assert (
        len(np.unique(signed[pro][:, :3], axis=0))
        == 1
        == len(np.unique(signed[~pro][:, :3], axis=0))
    )
    assert not np.allclose(signed[pro][0, :3], signed[~pro][0, :3])


def test_a_weak_map_says_how_weak_it_is_unless_it_has_its_own_scale(cam, images):
    maps = cam(images)
    large = maps.resize((12, 16))
    [_, positive, negative, _] = plots.cam_grid(maps, images, kinds=PAPER)[0]
    weaker = negative if large.negative[0].max() < large.positive[0].max() else positive
    assert weaker.get_xlabel().startswith("at most ")
    [_, positive, negative, _] = plots.cam_grid(
        maps, images, kinds=PAPER, share_scale=False, opacity=1.0
    )[0]
    assert positive.get_xlabel() == negative.get_xlabel() == ""
    assert map_on(negative)[..., 3].max() == pytest.approx(1.0)


def test_maps_of_another_question_say_so(cam, images):
    panel = plots.cam_grid(cam(images, target=1, against="cat"), images)[0, 1]
    assert panel.get_title().replace("\n", " ") == "account of the logit against cat"
    published = NObSPCam.as_published(cam.model).fit(torch.rand(30, 3, 12, 16))
    assert plots.cam_grid(published(images), images)[0, 1].get_title() == "channels for"


def test_normalised_images_are_shown_in_their_colours(cam, images):
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.25)
    given = (images - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    panel = plots.cam_grid(cam(images), given, mean=mean, std=std)[1, 0]
    assert np.asarray(panel.images[0].get_array()) == pytest.approx(
        images[1].permute(1, 2, 0).numpy(), abs=1e-5
    )


def test_several_targets_have_a_row_each(cam, images):
    grid = plots.cam_grid(
        cam(images[:2], target=np.array([[0, 1], [1, 2]])), images[:2], kinds=["account"]
    )
    assert grid.shape == (4, 2)
    assert [ax.get_ylabel().split("\n")[0] for ax in grid[:, 0]] == [
        "cat",
        "dog",
        "dog",
        r"cow \$1\$",
    ]


def test_a_map_without_any_evidence_is_drawn(cam, images):
    nothing = torch.zeros(1, 3, 12, 16)
    grid = plots.cam_grid(cam(nothing, target=0), nothing)
    grid[0, 0].figure.canvas.draw()


def test_no_more_rows_than_asked_for(cam, images):
    assert plots.cam_grid(cam(images), images, max_display=2).shape == (2, 3)


def test_every_image_of_a_batch_is_drawn_and_those_that_are_not_are_counted(cam):
    images = torch.rand(20, 3, 12, 16, generator=torch.Generator().manual_seed(1))
    all_of_them = plots.cam_grid(cam(images[:16]), images[:16])
    assert len(all_of_them) == 16
    assert not all_of_them[0, 0].figure.get_supxlabel()

    some_of_them = plots.cam_grid(cam(images), images)
    assert len(some_of_them) == 16
    assert "16 of 20" in some_of_them[0, 0].figure.get_supxlabel()


def test_panels_may_be_the_callers(cam, images):
    _, given = plt.subplots(2, 2)
    grid = plots.cam_grid(cam(images[:2]), images[:2], kinds="signed", ax=given)
    assert list(grid.ravel()) == list(given.ravel())
    with pytest.raises(ValueError, match="ax has 4 axes but this grid has 6 panels"):
        plots.cam_grid(cam(images[:2]), images[:2], ax=given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": ["positiv"]}, "found 'positiv'"),
        ({"opacity": 2}, "opacity must lie between 0 and 1"),
        ({"labels": [0]}, "labels has 1 entries but there are 5 images"),
        ({"labels": [0, 1, 2, 3, 4]}, "labels has the class 3, but there are 3 classes"),
    ],
)
def test_wrong_options_are_told(cam, images, options, message):
    with pytest.raises(ValueError, match=message):
        plots.cam_grid(cam(images), images, **options)


def test_wrong_images_are_told(cam, images):
    with pytest.raises(ValueError, match="expected 5 images"):
        plots.cam_grid(cam(images), images[:3])
    with pytest.raises(TypeError, match="pass cam"):
        plots.cam_grid(images, images)
