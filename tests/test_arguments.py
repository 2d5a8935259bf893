"""What callers pass is checked where it comes in, and the error names the argument."""

import numpy as np
import pytest
import torch
from torch import nn

import nobsp
from nobsp import arguments
from nobsp.tabular.tables import compress


@pytest.fixture(scope="module")
def explainer():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
    rows = np.random.default_rng(0).normal(size=(24, 3))
    return nobsp.NObSP(network, interactions=0, background=4).fit(rows)


@pytest.mark.parametrize("value", ["c", 1, np.zeros(3), {}, None])
def test_what_is_none_of_the_choices_is_refused(value):
    with pytest.raises(ValueError, match="space"):
        arguments.require_choice("space", value, ("a", "b"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 1.1, 10**400])
def test_numbers_out_of_range_are_refused(value):
    with pytest.raises(ValueError, match="share"):
        arguments.require_number("share", value, least=0, most=1)


@pytest.mark.parametrize("value", ["0.5", True, 1j, [0.5], np.array([0.5]), None])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match="share"):
        arguments.require_number("share", value, least=0, most=1)


def test_numbers_of_numpy_are_numbers():
    assert arguments.require_number("share", np.float32(0.5), least=0, most=1) == 0.5


@pytest.mark.parametrize("path", ["", "a\0b", "a" * 300])
def test_names_that_no_file_can_have_are_refused(path):
    with pytest.raises(ValueError, match="path"):
        arguments.path_of(path)


@pytest.mark.parametrize("path", [None, 3, b"file", ["file"]])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(TypeError, match="path"):
        arguments.path_of(path)


@pytest.mark.parametrize(
    "values",
    [
        np.ones(3) + 1j,
        np.ma.masked_array([1.0, 2.0], mask=[True, False]),
        np.array(["a"]),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        [object()],
        len,
    ],
)
def test_what_is_no_real_number_is_refused(values):
    with pytest.raises(TypeError, match="outputs"):
        arguments.numbers_of(values, name="outputs")


def test_the_name_of_a_column_in_place_of_numbers_is_told_from_them():
    with pytest.raises(TypeError, match="found 'weight'; pass the numbers themselves"):
        arguments.numbers_of("weight", name="sample_weight")


def test_rows_with_a_mask_are_refused(explainer):
    rows = np.ma.masked_array(np.zeros((4, 3)), mask=np.eye(4, 3))
    with pytest.raises(TypeError, match="X is a masked array"):
        explainer(rows)


def test_unsigned_numbers_that_would_turn_negative_are_refused(explainer):
    with pytest.raises(ValueError, match="X has whole numbers above"):
        explainer.fit(np.full((4, 3), 2**63 + 5, dtype=np.uint64))


def test_eight_bit_floats_are_floats(explainer):
    rows = torch.eye(3)
    found = explainer(rows.to(torch.float8_e4m3fn))
    np.testing.assert_allclose(found.values, explainer(rows).values, atol=1e-6)


@pytest.mark.parametrize("value", [3, "x", object(), nobsp.NObSP])
def test_what_is_no_explainer_cannot_be_merged_or_followed(explainer, value):
    with pytest.raises(TypeError, match="other"):
        explainer.merge(value)
    with pytest.raises(TypeError, match="like"):
        nobsp.NObSP(explainer.model).fit(np.zeros((4, 3)), like=value)


@pytest.mark.parametrize("value", [3, "x", object(), [1, 2]])
@pytest.mark.parametrize("argument", ["hits", "influence", "audit", "truth", "title", "about"])
def test_parts_of_a_report_are_checked(explainer, argument, value, tmp_path):
    if isinstance(value, str) and argument in ("title", "about"):
        return
    rows = np.random.default_rng(0).normal(size=(4, 3))
    with pytest.raises(TypeError, match=argument):
        nobsp.report(explainer(rows), tmp_path / "page.html", **{argument: value})
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def cam_and_images():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
        )
        images = torch.rand(6, 1, 8, 8)
    return nobsp.NObSPCam(network).fit(images), images


@pytest.fixture(scope="module")
def index(explainer):
    rows = np.random.default_rng(0).normal(size=(24, 3))
    return nobsp.ContributionIndex(explainer).fit(rows, np.arange(24) % 2)


def test_a_tensor_without_values_is_refused(explainer, cam_and_images):
    cam, _ = cam_and_images
    with pytest.raises(TypeError, match="X"):
        explainer(torch.zeros(4, 3, device="meta"))
    with pytest.raises(TypeError, match="images"):
        cam(torch.zeros(4, 1, 8, 8, device="meta"))


def test_a_model_without_weights_is_refused(cam_and_images):
    _, images = cam_and_images
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    with pytest.raises(ValueError, match="model"):
        nobsp.explain_images(network.to("meta"), images)


@pytest.mark.parametrize("progress", [np.zeros(0), np.zeros((2, 2)), "yes", object()])
def test_progress_is_true_or_false(explainer, progress):
    with pytest.raises(TypeError, match="progress"):
        explainer(np.zeros((4, 3)), progress=progress)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda images: np.ma.masked_less(images, 0.5),
        lambda images: images.astype(object),
    ],
    ids=["masked", "objects"],
)
def test_images_that_hold_more_than_numbers_are_refused(cam_and_images, spoil):
    cam, images = cam_and_images
    with pytest.raises(TypeError, match="images"):
        cam(spoil(images.numpy()))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_images_that_are_only_drawn_are_numbers_too(cam_and_images, value):
    cam, images = cam_and_images
    maps = cam(images)
    spoiled = images.clone()
    spoiled[2, 0, 1, 1] = value
    with pytest.raises(ValueError, match="images"):
        maps.overlay(spoiled)
    with pytest.raises(ValueError, match="std"):
        maps.overlay(images, std=value)


@pytest.mark.parametrize("labels", [np.full(6, np.nan), np.arange(6) / 7])
def test_labels_that_are_no_classes_are_called_labels(cam_and_images, labels):
    cam, images = cam_and_images
    with pytest.raises(TypeError, match="labels"):
        nobsp.confusions(cam, images, labels)


@pytest.mark.parametrize("target", ["nonsense", -1, 1j, [[1, [2]], [3]], {}])
def test_a_target_that_is_no_class_is_called_target(index, target):
    with pytest.raises((TypeError, ValueError), match=r"^target"):
        index.influence(np.zeros((2, 3)), target=target)


@pytest.mark.parametrize("threshold", [None, [0.1], object(), -1, 2, float("nan"), True])
def test_a_threshold_of_duplicates_lies_between_0_and_2(index, threshold):
    with pytest.raises(ValueError, match="threshold"):
        index.duplicates(threshold)


def test_rows_to_leave_out_are_one_array(index):
    with pytest.raises(ValueError, match="exclude"):
        index.query(np.zeros((2, 3)), 3, exclude=[[1, [2]], [3]])


def test_classes_are_texts_or_numbers(explainer):
    classes = np.array([None, "x"], dtype=object)
    with pytest.raises(ValueError, match="classes"):
        nobsp.ContributionIndex(explainer, classes=classes).fit(np.zeros((4, 3)), [0, 1, 0, 1])


def test_features_to_draw_are_named_by_their_argument(explainer):
    with pytest.raises(ValueError, match=r"^features"):
        nobsp.plots.curves(explainer, features="nonsense")
    with pytest.raises(ValueError, match=r"^pair"):
        nobsp.plots.interaction(explainer, pair=("x0", "nonsense"))


def test_a_term_is_a_name(explainer):
    with pytest.raises(ValueError, match="feature"):
        explainer.function(np.array([None, "x", 3], dtype=object))


def test_a_function_that_takes_no_rows_is_refused():
    with pytest.raises(TypeError, match="model"):
        nobsp.NObSP(lambda: None).fit(np.zeros((8, 2)))


def test_removal_does_not_answer_with_nan(explainer):
    background = np.zeros((8, 3))
    background[3, 1] = 1e300
    effects = explainer.removal_effects(np.zeros((2, 3)), background=background)
    assert np.isfinite(effects).all()


def test_a_masked_table_has_no_suggested_features():
    rows = np.ma.masked_less(np.random.default_rng(0).normal(size=(20, 2)), 0.0)
    with pytest.raises(TypeError, match="X"):
        nobsp.NObSP.suggest_features(rows)


def test_rows_that_repeat_a_few_are_enough_to_look_for_pairs():
    network = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
    rows = np.tile(np.random.default_rng(0).normal(size=(4, 3)), (4, 1))
    explanation = nobsp.NObSP(network, background=4).fit(rows)(rows)
    assert np.isfinite(explanation.values).all()


def test_rows_of_the_smallest_numbers_are_explained():
    network = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    rows = np.random.default_rng(0).normal(size=(24, 3)) * 1e-310
    explanation = nobsp.NObSP(network, background=4).fit(rows)(rows)
    assert np.isfinite(explanation.values).all()


def test_tables_of_the_smallest_numbers_have_no_directions():
    generator = torch.Generator().manual_seed(0)
    table = 1e-155 * torch.randn(24, 6, generator=generator, dtype=torch.float64)
    share = torch.full((24,), 1 / 24, dtype=torch.float64)
    assert compress(table, share, most=4).shape == (6, 0)


@pytest.mark.parametrize("checkpoint", [3.7, b"file", "", "/", ["file"], object()])
def test_a_checkpoint_is_the_name_of_a_file(checkpoint):
    network = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
    explainer = nobsp.NObSP(network, interactions=0, background=4)
    with pytest.raises((TypeError, ValueError), match="checkpoint"):
        explainer.fit(np.zeros((8, 3)), engine=nobsp.Local(checkpoint))


@pytest.mark.parametrize("against", [np.zeros(0), np.zeros((2, 2)), 10**400])
def test_a_rival_is_one_class(cam_and_images, against):
    cam, images = cam_and_images
    with pytest.raises((TypeError, ValueError), match="against"):
        cam(images, against=against)


def test_warnings_are_of_the_line_that_called(explainer):
    with pytest.warns(nobsp.tabular.explainer.ExplainedWorseWarning) as caught:
        explainer(50.0 + np.random.default_rng(0).normal(size=(300, 3)))
    assert caught[0].filename == __file__


BAD_ARGUMENTS = {
    "score: one label": lambda f, X: f.score(X, 3.7),
    "score: complex labels": lambda f, X: f.score(X, X[:, :2] + 1j),
    "score: sample_weight below zero": lambda f, X: f.score(X, X[:, :2], -np.ones(len(X))),
    "score: sample_weight of zero": lambda f, X: f.score(X, X[:, :2], np.zeros(len(X))),
    "score: sample_weight too short": lambda f, X: f.score(X, X[:, :2], np.ones(3)),
    "edit: rule": lambda f, X: f.edit("x0", 3, X, output=0),
    "drop: take_over": lambda f, X: f.drop("x0", X, take_over=np.zeros(2)),
    "with_classes: classes as a text": lambda f, _: f.with_classes("ab"),
    "with_classes: classes as a number": lambda f, _: f.with_classes(3),
    "to_sql: table": lambda f, _: f.to_sql(None),
    "to_sql: contributions": lambda f, _: f.to_sql("t", contributions=np.zeros(2)),
    "onnx_inputs: complex X": lambda f, X: f.onnx_inputs(X + 1j),
    "onnx_inputs: X of texts": lambda f, X: f.onnx_inputs(X.astype(str)),
    "to_onnx: like": lambda f, X: f.to_onnx("f.onnx", like=X.astype("datetime64[s]")),
}
NAMES = (
    "y",
    "sample_weight",
    "rule",
    "take_over",
    "classes",
    "table",
    "contributions",
    "X",
    "like",
)


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_functions_refuse_what_has_no_meaning(explainer, case):
    X = np.random.default_rng(0).normal(size=(24, 3))
    names = "|".join(name for name in NAMES if name in case) or "y"
    with pytest.raises((TypeError, ValueError), match=rf"\b({names})\b"):
        BAD_ARGUMENTS[case](explainer.compile(), X)


def test_comparisons_refuse_what_has_no_meaning(explainer):
    X = np.random.default_rng(0).normal(size=(24, 3))
    compared = nobsp.compare(explainer(X), explainer(X[:20]), draws=100)
    for spoiled in ({"feature": "x9"}, {"x": 3.0}, {"x": X}, {"side": 2}, {"side": None}):
        usual = {"feature": "x0", "x": X[:, 0], "side": 0, "output": 0}
        with pytest.raises(ValueError, match=next(iter(spoiled))):
            compared.curve(**{**usual, **spoiled})
    with pytest.raises(ValueError, match="feature"):
        compared.along(np.zeros(2), output=0)
    with pytest.raises(ValueError, match="random_state"):
        nobsp.compare(explainer(X), explainer(X), draws=100, random_state=-1)


@pytest.mark.parametrize("option", ["connectivity", "candidates", "threads", "dtype"])
def test_options_of_usearch_are_checked(option):
    with pytest.raises(ValueError, match=option):
        nobsp.Usearch(**{option: -1})
    assert nobsp.Usearch(connectivity=np.int64(8)).connectivity == 8


def test_distillers_refuse_teachers_of_other_outputs(explainer):
    X = np.random.default_rng(0).normal(size=(24, 3))
    three = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3))
    with pytest.raises(ValueError, match="teacher"):
        nobsp.NObSPClassifier(three, interactions=0).fit(X, X[:, 0] > 0)
    with pytest.raises(ValueError, match="random_state"):
        nobsp.NObSPClassifier(three, random_state=-1).fit(X, np.arange(24) % 3)


def test_a_gallery_of_too_few_files_is_refused(explainer, tmp_path):
    X = np.random.default_rng(0).normal(size=(24, 3))
    hits = nobsp.ContributionIndex(explainer).fit(X, np.arange(24) % 2).query(X, 3)
    with pytest.raises(ValueError, match="gallery"):
        nobsp.report(hits, tmp_path / "page.html", gallery="x.png")
