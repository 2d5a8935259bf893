"""Names that people know from other packages, and what does their work here.

Errors about an unknown name say it: who has come from SHAP or scikit-learn guesses the names that
they have there.

Needs no other package.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar

_SHAP_PLOTS = "shap's own plot takes ex.to_shap()"

# Of the package itself.
PACKAGE = {
    "Explainer": "nobsp.NObSP(model).fit(X), or nobsp.NObSPCam(model) for images",
    "TreeExplainer": "nobsp.NObSP(model).fit(X)",
    "KernelExplainer": "nobsp.NObSP(model).fit(X)",
    "DeepExplainer": "nobsp.NObSP(model).fit(X)",
    "GradientExplainer": "nobsp.NObSP(model).fit(X)",
    "PermutationExplainer": "nobsp.NObSP(model).fit(X)",
    "GradCAM": "nobsp.NObSPCam(model).fit(images)",
    "explain": "nobsp.NObSP(model).fit(X), then explainer(X_new)",
    "fit": "nobsp.NObSP(model).fit(X)",
    "load": "nobsp.NObSP.load(path, model), nobsp.NObSPCam.load or nobsp.Functions.load(path)",
    "save": "the method save(path) of explainers and functions",
    "summary_plot": "ex.plot.beeswarm() or ex.plot.importance(), of ex = explainer(X)",
    "force_plot": f"ex.plot.waterfall(row), of ex = explainer(X); {_SHAP_PLOTS}",
    "dependence_plot": "explainer.plot.curves(['feature'])",
    "decision_plot": f"ex.plot.waterfall(row), of ex = explainer(X); {_SHAP_PLOTS}",
    "waterfall_plot": "ex.plot.waterfall(row), of ex = explainer(X)",
    "find_label_issues": "nobsp.audit(nobsp.ContributionIndex(explainer).fit(X, labels))",
}

# Of explainers of tables.
EXPLAINER = {
    "shap_values": "explainer(X).values",
    "shap_interaction_values": "explainer(X).order(2).values",
    "explain_row": "explainer(X[:1])",
    "expected_value": "explainer.base_values_",
    "base_values": "explainer.base_values_",
    "transform": "explainer(X).values",
    "fit_transform": "explainer.fit(X)(X).values",
    "predict": "explainer.compile().predict(X), which predicts by the functions alone",
    "predict_proba": "explainer.compile().predict_proba(X), which predicts by the functions alone",
    "functions": "explainer.compile(), functions that need no model",
    "feature_importances_": "explainer.importance()",
    "explain_global": "explainer.curves() and explainer.importance()",
    "explain_local": "explainer(X)",
    "curve": "explainer.curves() as a table, or explainer['name'] as a function to call",
    "to_sql": "explainer.compile().to_sql(table)",
    "to_onnx": "explainer.compile().to_onnx(path)",
    "to_javascript": "explainer.compile().to_javascript()",
    "to_excel": "explainer.compile().to_excel(path)",
    "edit": "explainer.compile().edit(feature, rule, X)",
    "export": "explainer.compile(), which has to_sql, to_onnx, to_excel and to_javascript",
    "to_json": "explainer.compile().to_javascript(), or save(path)",
    "report": "nobsp.report(explainer(X), path)",
    "to_html": "nobsp.report(explainer(X), path)",
}

# Of functions without their model.
FUNCTIONS = {
    "export": "to_sql(table), to_onnx(path), to_excel(path) or to_javascript()",
    "to_json": "to_javascript(), or save(path)",
    "to_python": "save(path) and nobsp.Functions.load(path), which need numpy alone",
    "to_csv": "curves(), a table of every function",
    "to_frame": "curves(), a table of every function",
    "to_js": "to_javascript()",
    "plot": "explainer.plot.curves(), before compile(), or curves(), a table of every function",
    "transform": "explain(X).values",
    "shap_values": "explain(X).values",
    "intercept_": "base_values",
    "coef_": "curves(), a table of every function",
}

# Of explanations.
EXPLANATION = {
    "shap_values": "ex.values",
    "expected_value": "ex.base_values",
    "display_data": "ex.data",
    "abs": "explainer.importance(), or abs(ex.values)",
    "mean": "ex.values.mean(0)",
    "sum": "ex.total(), the sums of a feature's terms",
    "sample": "ex[rows], with positions of your choice",
    "interactions": "ex.order(2)",
    "to_pandas": "ex.to_frame()",
    "to_polars": "ex.to_frame(), a frame of the kind that was explained",
    "to_dataframe": "ex.to_frame()",
    "to_df": "ex.to_frame()",
    "to_html": "nobsp.report(ex, path)",
    "report": "nobsp.report(ex, path)",
    "as_list": "ex[row].to_frame()",
    "residuals": "ex.residual",
    "prediction": "ex.predictions",
}

# Of maps of images.
MAPS = {
    "heatmap": "maps.overlay(images) for arrays, maps.plot.cam_grid(images) for a figure",
    "cam": "maps.account",
    "predicted": "maps.logits.argmax(1), or maps.target, the classes that maps are about",
    "predictions": "maps.logits, or maps.confidence",
    "probabilities": "maps.confidence",
    "values": "maps.account",
    "attributions": "maps.account",
    "save": "maps.overlay(images) for arrays to save, nobsp.report(maps, path) for a page",
    "show": "maps.plot.cam_grid(images)",
}

# Of audits.
AUDIT = {
    "suspects": "audit.mislabels, True for every suspected label",
    "label_issues": "audit.mislabels, or audit.to_frame()",
    "find_label_issues": "audit.mislabels, or audit.to_frame()",
    "get_label_issues": "audit.to_frame()",
    "get_issues": "audit.to_frame()",
    "issues": "audit.to_frame()",
    "is_label_issue": "audit.mislabels",
    "label_quality": "audit.label_score",
    "given_label": "audit.labels",
    "predicted_label": "audit.suggested",
    "plot": "nobsp.report(audit, path), a page",
    "to_csv": "audit.to_frame().to_csv(path)",
    "save": "audit.to_frame() for a table, nobsp.report(audit, path) for a page",
}

# Of the plots of an explanation or an explainer.
PLOTS = {
    "bar": "plot.importance()",
    "summary": "plot.beeswarm() or plot.importance()",
    "summary_plot": "plot.beeswarm() or plot.importance()",
    "violin": "plot.beeswarm()",
    "force": f"plot.waterfall(row); {_SHAP_PLOTS}",
    "decision": f"plot.waterfall(row); {_SHAP_PLOTS}",
    "heatmap": f"plot.ledger(); {_SHAP_PLOTS}",
    "scatter": "explainer.plot.curves(['feature'])",
    "dependence": "explainer.plot.curves(['feature'])",
    "dependence_plot": "explainer.plot.curves(['feature'])",
    "partial_dependence": "explainer.plot.curves(['feature'])",
    "curve": "explainer.plot.curves(['feature'])",
    "curves": "explainer.plot.curves(['feature'])",
    "imshow": "maps.plot.cam_grid(images)",
    "show": "maps.plot.cam_grid(images)",
}


# Of the plots as functions, `nobsp.plots`.
PLOT_FUNCTIONS = {
    name: f"ex.{advice}" if advice.startswith("plot.") else advice for name, advice in PLOTS.items()
}

_ROWS_TO_FIT = "pass the rows to fit, as in NObSP(model).fit(X)"
_LOGITS = "it explains what comes before the softmax; ex.to_probability() converts"
_DEPENDS_ON_NO_DRAW = "leave it out: the same rows always give the same functions"
_KINDS_ARE_FOUND = "leave it out: kinds of columns are found in the rows passed to fit"
_IMAGES_TO_FIT = "pass the images to fit, as in NObSPCam(model).fit(images)"
_LAYER = "layer=, one module or its name; it is found where it is left out"

# Arguments of `NObSP`.
EXPLAINER_ARGUMENTS = {
    "feature_names": "features=, a list of names, one per column; frames bring their own",
    "feature_names_in": "features=, a list of names, one per column; frames bring their own",
    "columns": "features=, a list of names, one per column; frames bring their own",
    "class_names": "output_names=",
    "target_names": "output_names=",
    "classes": "output_names=",
    **dict.fromkeys(
        ("data", "X", "background_data", "masker", "training_data", "train_data", "X_train"),
        _ROWS_TO_FIT,
    ),
    **dict.fromkeys(("y", "labels", "training_labels"), "leave it out: labels are not needed"),
    **dict.fromkeys(("link", "model_output"), _LOGITS),
    **dict.fromkeys(("seed", "random_state"), _DEPENDS_ON_NO_DRAW),
    **dict.fromkeys(
        ("categorical_features", "categorical_names", "feature_types"), _KINDS_ARE_FOUND
    ),
    **dict.fromkeys(
        ("predict_fn", "predict", "forward_func"), "NObSP(function), the first argument"
    ),
    "mode": "leave it out: what the model gives is explained",
    "task": "leave it out: what the model gives is explained",
    "algorithm": "leave it out: there is one for all models",
    "feature_perturbation": "leave it out: effects are averaged over rows passed to fit",
    "nsamples": "background=, how many rows an effect is averaged over",
    "n_samples": "background=, how many rows an effect is averaged over",
    "baselines": "baseline=",
}

# Arguments of `NObSP.fit`.
FIT_ARGUMENTS = {
    "weights": "sample_weight=",
    "sample_weights": "sample_weight=",
    "data": "fit(X), the first argument",
    "background_data": "fit(X), the first argument",
    "feature_names": "NObSP(model, features=[...])",
    "features": "NObSP(model, features=[...])",
    "background": "NObSP(model, background=...)",
    "batch_size": "NObSP(model, batch_size=...)",
    "interactions": "NObSP(model, interactions=...)",
    "baseline": "NObSP(model, baseline=...)",
    "verbose": "progress=True",
}

# Arguments of `NObSP.load` that are forgotten.
LOAD_ARGUMENTS = {
    "model": "files hold the functions, not the model, so pass the one that was explained, "
    "NObSP.load(path, model); without it, explainer.compile().save(path) and "
    "nobsp.Functions.load(path)"
}

# Arguments of a calibrated `NObSP`.
CALL_ARGUMENTS = {
    "nsamples": "leave it out: a row costs one forward pass",
    "max_evals": "leave it out: a row costs one forward pass",
    "num_samples": "leave it out: a row costs one forward pass",
    "check_additivity": "leave it out: base, terms and residual add up to the prediction",
    "interactions": "NObSP(model, interactions=...), before fit",
    "output": "ex[:, :, output], of ex = explainer(X)",
    "target": "ex[:, :, output], of ex = explainer(X)",
    "outputs": "ex[:, :, output], of ex = explainer(X)",
    "top_labels": "ex[:, :, output], of ex = explainer(X)",
    "num_features": "leave it out: all terms are given; ex.plot.waterfall(row) draws some",
    "y": "leave it out: predictions are explained, not labels",
    "link": _LOGITS,
    "silent": "progress=False, which is the default",
    "batch_size": "NObSP(model, batch_size=...)",
}

# Arguments of `NObSPCam`.
CAM_ARGUMENTS = {
    **dict.fromkeys(("target_layer", "target_layers", "conv_layer"), _LAYER),
    "class_names": "output_names=",
    "classes": "output_names=",
    "fc_layer": "head=",
    "use_cuda": 'device="cuda"',
    "reshape_transform": "leave it out: where tokens lie in the image is found",
    "input_shape": "leave it out: it is found with the images passed to fit",
    "images": _IMAGES_TO_FIT,
    "data": _IMAGES_TO_FIT,
    "target": "cam(images, target=...), after fit",
}

# Arguments of a calibrated `NObSPCam`.
MAPS_ARGUMENTS = {
    "targets": "target=, a class number or name, or one per image",
    "class_idx": "target=, a class number or name, or one per image",
    "input_tensor": "cam(images), the first argument",
    "aug_smooth": "cam.thorough(images), a map of 50 passes",
    "eigen_smooth": "cam.thorough(images), a map of 50 passes",
    "layer": "NObSPCam(model, layer=...), before fit",
    "output": "NObSPCam(model, output=...), before fit, or target= for a class",
}


def describe_unknown(
    owner: str, name: str, *, known: list[str], elsewhere: Mapping[str, str]
) -> str:
    """An error about an unknown name: what does its work here, or which name is close."""
    complaint = f"{owner} has no {name!r}"
    if name in elsewhere:
        return f"{complaint}; use {elsewhere[name]}."

    close = get_close_matches(name, [other for other in known if not other.startswith("_")], n=1)
    return f"{complaint}; did you mean {close[0]!r}?" if close else f"{complaint}."


class NamesFromElsewhere:
    """Says of an unknown attribute, perhaps one of another package, what does its work here."""

    _elsewhere: ClassVar[Mapping[str, str]] = {}

    # Type checkers do not see this, so that misspelt names are an error to them.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if hasattr(type(self), name):
                # A property failed with an AttributeError, such as of what is not fitted: this one
                # is told.
                return object.__getattribute__(self, name)
            owner = type(self).__name__
            if name.startswith("_"):
                raise AttributeError(f"{owner!r} object has no attribute {name!r}")
            known = dir(self)
            raise AttributeError(
                describe_unknown(owner, name, known=known, elsewhere=self._elsewhere)
            )
