"""NObSP for tables: a trained network in, the functions it has learned out.

CONTRIBUTING.md, "The way from `fit` to a curve", says which file does which step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Literal, Self
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from nobsp import notebook
from nobsp._typing import (
    AnyArray,
    ArrayLike,
    BaselineLike,
    ModelLike,
    NativeFrame,
    Shape,
    TableLike,
)
from nobsp.arguments import (
    quote,
    refusing_arguments,
    refusing_options,
    require_whole_number,
    warn_caller,
    weights_of,
)
from nobsp.base import Explainer, Plots
from nobsp.calibration import Engine, Run, choose_engine
from nobsp.calibration.ray import RayRun
from nobsp.deprecation import USUAL_CONFIDENCE, argument_of, warn_renamed
from nobsp.elsewhere import (
    CALL_ARGUMENTS,
    EXPLAINER,
    EXPLAINER_ARGUMENTS,
    FIT_ARGUMENTS,
    LOAD_ARGUMENTS,
)
from nobsp.models import adapt
from nobsp.network.evidence import EvidenceBatch, EvidenceSource, Wanted, sign_coefficients
from nobsp.network.guest import checked_device, keeps_torch_modes
from nobsp.network.readout import Network, running_on
from nobsp.serialization import damage_in_words
from nobsp.tabular import files
from nobsp.tabular.as_published import AsPublished
from nobsp.tabular.curves import function_of, read_term, value_readers
from nobsp.tabular.explanation import Explanation
from nobsp.tabular.features import FeatureOption, decoded_rows, input_values
from nobsp.tabular.fewest import FewestFeatures, fewest_features
from nobsp.tabular.files import CHECKPOINTED
from nobsp.tabular.fit_together import FitTogether
from nobsp.tabular.fitted import CalibratedModel, Method
from nobsp.tabular.functions import Functions, with_bands
from nobsp.tabular.health import (
    ExplainedWorseWarning,
    Health,
    MultiOutput,
    average_share,
    compare_with_headline,
    share_on_rows,
    sort_findings,
)
from nobsp.tabular.indexing import output_position, term_name
from nobsp.tabular.predicting import classes_of_model
from nobsp.tabular.removal import measure_removal
from nobsp.tabular.setting import Options, Setting, open_rows, pose_problem, prepare_data
from nobsp.tabular.shapes import ShapeCheck, check_shape
from nobsp.tabular.suggestions import suggest_features
from nobsp.tabular.weak_spots import WeakSpot, find_weak_spots, weak_spot_findings

# By the option `reference`.
METHODS: dict[str, Method] = {"terms": FitTogether(), "complement": AsPublished()}

# Calibrations whose user has been warned that rows are explained worse than the headline.
_WARNED: WeakSet[CalibratedModel] = WeakSet()


@refusing_options(EXPLAINER_ARGUMENTS, surplus="pass the rows to fit, as in NObSP(model).fit(X)")
@dataclass(eq=False, repr=False)
class NObSP(Explainer):
    """Writes a model's predictions as base + one function per feature + interactions + residual.

    What a feature does is what the model predicts with it at a value, averaged over background
    rows: a function, held as a table. Interactions are added where they pay on held-out rows. All
    are fitted together to the model's outputs, with its own last layer as the prior.

    Args:
        model: A torch module; a fitted model of scikit-learn, XGBoost, LightGBM, CatBoost,
            interpret or skorch, also at the end of a pipeline; an onnxruntime session; or a
            function from an array to an array. It is only run, never changed.
        features: None for one feature per column; one name per column; or a dictionary of names and
            their column or columns, which are then one feature, fitted jointly.
        background: How many calibration rows a feature's effect is averaged over, or the rows
            themselves; 1 for the baseline alone.
        baseline: The point that `from_baseline` measures from; as published, what an inactive
            feature is set to. "mean" (categories: the most frequent level), "zero", "median",
            "mode", one value per column, or a dictionary from feature to one of these.
        reference: "terms" fits all terms at once, each along all the others; "complement" is
            Algorithm 1 of the paper, each feature along the network's view of all other features.
        interactions: "auto" to fit the pairs and triples that pay on held-out rows; 0 for single
            features only; a number of pairs, the strongest are taken; or a list of pairs and
            triples of feature names.
        ridge: How strongly functions are held to the network's own average effects. "auto" lets
            held-out rows choose; `ridge_` tells what was chosen. As published it regularises each
            solve, 1e-4 by default.
        ridge_scale: "relative" to the matrix it is added to, or, as published, "absolute".
        head: Name of the last linear layer, or the layer; found by running the model when None.
        output_names: Names of the outputs.
        device: Where to run the model; where it is when None.
        batch_size: Most rows in one forward call.
        max_forward_rows: Most rows sent through the model to calibrate, for models that are slow;
            no limit when None. Single features come first, then interactions. Of the first
            background rows are saved before knots, of pairs lines of grids first. `health` tells.

    Example:
        >>> import torch
        >>> from nobsp import NObSP
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(3, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        ... )
        >>> X = torch.randn(500, 3)
        >>> explainer = NObSP(model, features=["a", "b", "c"]).fit(X)
        >>> explanation = explainer(X[:5])
        >>> explanation.terms
        (('a',), ('b',), ('c',), ...
        >>> account = explanation.base_values + explanation.values.sum(1) + explanation.residual
        >>> bool((abs(account - explanation.predictions) < 1e-12).all())
        True
    """

    model: ModelLike
    _: KW_ONLY
    features: FeatureOption = None
    background: int | TableLike = 32
    baseline: BaselineLike = "mean"
    reference: Literal["terms", "complement"] = "terms"
    interactions: int | Literal["auto"] | Sequence[Sequence[str]] = "auto"
    ridge: float | Literal["auto"] = "auto"
    ridge_scale: Literal["relative", "absolute"] = "relative"
    head: str | nn.Module | None = None
    output_names: Sequence[str] | None = None
    device: torch.device | str | None = None
    batch_size: int = 4096
    max_forward_rows: int | None = None

    suggest_features = staticmethod(suggest_features)
    _elsewhere = EXPLAINER

    @classmethod
    def as_published(cls, model: ModelLike, **options: Any) -> Self:
        """Algorithm 1 of the paper: complement reference, absolute ridge of 1e-4, no interactions.

        Three things differ from its text. New rows are centred as the calibration rows are, which
        the paper's formula for them leaves out. The base value is the mean output, not the head's
        bias. Directions in which a term's representation varies by no more than rounding are
        dropped.
        """
        published = {
            "reference": "complement",
            "interactions": 0,
            "ridge": 1e-4,
            "ridge_scale": "absolute",
        }
        return cls(model, **{**published, **options})

    @refusing_arguments(FIT_ARGUMENTS, owner="NObSP.fit")
    @keeps_torch_modes
    def fit(
        self,
        X: TableLike,
        y: ArrayLike = None,  # noqa: ARG002 - as scikit-learn calls it
        sample_weight: ArrayLike = None,
        groups: ArrayLike = None,
        *,
        engine: Engine | None = None,
        progress: bool = False,
        like: NObSP | None = None,
    ) -> Self:
        """Calibrates on `X`; a former calibration is replaced.

        Memory does not grow with the rows. Past 16,384 rows, functions are fitted on a random
        sample of that many; ranges and levels are those of all rows. As published, sums run over
        all rows.

        Args:
            X: Array, tensor, pandas or polars frame, DataLoader (labels in its batches are left
                aside), an iterable of batches, or a `ray.data.Dataset` of numbers (or of arrays,
                one per row).
            y: Ignored: the network's own outputs are explained.
            sample_weight: How much each row counts, for rows in memory: a row of weight 2 counts as
                two such rows do. Weights that are whole multiples of the smallest count exactly,
                unless they are very different. All others are rounded: to 1/32 of the mean weight
                up to 512 rows, to 1/4 at worst beyond. No positive weight becomes zero.
            groups: Which rows belong together, for rows in memory: one value per row, or the name
                of a column of the frame, which stays a feature if the model takes it. Rows of one
                customer, patient or day are then held out together, and drawn together for the
                bands; the share explained is that on new groups. Identical rows are kept together
                too, but for those that columns of few values make by chance, and the most frequent
                one: these join no groups.
            engine: Where rows are added up: `nobsp.Local` in this process, `nobsp.Ranks` on all
                processes of a `torch.distributed` group, `nobsp.RayCluster` in the workers of a Ray
                cluster. By default all ranks where there are several, else the cluster of a Ray
                dataset, else this process.
            progress: Whether to show progress bars on stderr.
            like: As published only: a calibrated explainer of the same model whose baseline, terms
                and bases are taken over, so that what is calibrated on other rows can be merged
                with it.
        """
        with choose_engine(engine, X).start(CHECKPOINTED) as run:
            # In here, so that other processes learn of an error.
            options = Options.of(vars(self))
            method = METHODS[options.reference]
            taken_over = None if like is None else _calibration_like(like, options)
            _require_one_process(run, method, sample_weight=sample_weight, groups=groups)

            data = prepare_data(
                X, model=self.model, options=options, sample_weight=sample_weight, groups=groups
            )
            expected = (
                data.adapted.feature_names if taken_over is None else taken_over.columns.names
            )
            rows = open_rows(run, data.X, data.adapted, options.batch_size, columns=expected)
            problem = pose_problem(
                run,
                rows,
                data,
                options,
                known_columns=None if taken_over is None else taken_over.columns,
                known_plan=None if taken_over is None else taken_over.plan_fingerprint(),
            )
            if taken_over is not None:
                taken_over.require_same_model(problem.readout)

            summary, estimate = method.calibrate(
                run,
                rows,
                problem,
                known=None if taken_over is None else taken_over.estimate,
                progress=progress,
            )
        self._calibration = CalibratedModel(
            adapted=data.adapted,
            readout=problem.readout,
            columns=problem.columns,
            summary=summary,
            estimate=estimate,
            method=method,
            weighted=sample_weight is not None,
            grouped=groups is not None,
            group_column=groups if isinstance(groups, str) else "",
        )
        for finding in estimate.functions.state.findings:
            if finding.severity == "error":
                warn_caller(f"{finding.subject}: {finding.message}")
        return self

    def merge(self, other: NObSP) -> Self:
        """Adds another calibration's rows to this one.

        Functions are fitted anew on both samples of rows. As published, sums are added up:
        baseline, terms and bases must then be the same, which `fit(X, like=explainer)` takes care
        of.
        """
        _require_explainer("other", other)
        mine = self._fitted
        theirs = other._fitted
        _require_plain_rows(mine, theirs)
        mine.require_same_model(theirs.readout)
        method = mine.method
        method.require_mergeable(
            mine.estimate, theirs.estimate, summaries=(mine.summary, theirs.summary)
        )

        summary = mine.summary.merge(theirs.summary)
        columns = mine.columns.merge(theirs.columns)
        setting = Setting(
            adapted=mine.adapted,
            network=Network(mine.readout, checked_device(self.device, mine.readout.device)),
            columns=columns,
            options=Options.of(vars(self)),
            output_names=mine.functions.output_names,
            summary=summary,
        )
        estimate = method.merge(mine.estimate, theirs.estimate, setting)
        self._calibration = replace(mine, columns=columns, summary=summary, estimate=estimate)
        return self

    @refusing_arguments(CALL_ARGUMENTS, owner="the explainer")
    @keeps_torch_modes
    def explain(self, X: TableLike, *, progress: bool = False) -> Explanation:
        """The account of every row's prediction.

        A row with a level that calibration did not see, a missing or an infinite value is explained
        as far as it can be, and flagged in `outside`; the others are not affected.

        Args:
            X: Rows, of any kind that `fit` takes.
            progress: Whether to show a progress bar on stderr.

        Raises:
            NotFittedError: If `fit` has not been called.
            ValueError: If columns do not match, or a column has no value that can be read.
        """
        explanation = self._explain(X, progress=progress)
        self._warn_once(explanation)
        return explanation

    __call__ = explain

    def _explain(self, X: TableLike, *, progress: bool = False) -> Explanation:
        """The account of every row's prediction, without a warning."""
        fitted = self._fitted
        X = fitted.without_group_column(X)
        with running_on(fitted.readout, self.device) as represent:
            accounts = list(
                fitted.explain(X, represent, batch_size=int(self.batch_size), progress=progress)
            )

        predictions = torch.cat([account.outputs for account in accounts]).numpy()
        parts = [account.values for account in accounts if account.values is not None]
        values = torch.cat(parts).numpy()
        rows = X
        if not hasattr(X, "shape"):  # read only once, perhaps
            rows = torch.cat([account.inputs for account in accounts]).numpy()

        functions = fitted.functions
        return Explanation(
            values=values,
            base_values=functions.base_values.copy(),
            residual=predictions - functions.base_values - values.sum(1),
            predictions=predictions,
            terms=self.terms_,
            feature_names=fitted.columns.features.names,
            output_names=functions.output_names,
            data=rows,
            outside=np.concatenate([account.outside for account in accounts]),
            baseline_contributions=fitted.estimate.baseline_contributions.copy(),
            explainer=functions,
            origin=functions,
        )

    def _warn_once(self, explanation: Explanation) -> None:
        """Warns where rows are explained clearly worse than the headline says.

        There is one warning per calibration.
        """
        if self._fitted in _WARNED:
            return
        known = np.isfinite(explanation.residual).all(1)
        finding = compare_with_headline(
            explanation.predictions[known],
            explanation.residual[known],
            self._fitted.functions.state,
            explanation.output_names,
        )
        if finding is not None and finding.severity == "warning":
            _WARNED.add(self._fitted)
            warn_caller(finding.message, ExplainedWorseWarning)

    @keeps_torch_modes
    def score(
        self,
        X: TableLike,
        y: ArrayLike = None,  # noqa: ARG002 - as scikit-learn calls it
        sample_weight: ArrayLike = None,
        *,
        multioutput: MultiOutput = "uniform_average",
    ) -> float | NDArray[np.float64]:
        """R² of the functions' sum against the model's own outputs, on any rows.

        On rows that neither the model nor the calibration has seen it is what the held-out R²
        promises.

        Args:
            X: Rows, of any kind that `fit` takes.
            y: Ignored: the functions are compared with the model, not with the world.
            sample_weight: How much each row counts. Where `fit` had weights, the held-out R² is
                that of rows weighted in the same way.
            multioutput: "uniform_average" for one number, the mean over outputs that vary; "raw"
                for one each, NaN for those that do not.

        Example:
            >>> import torch
            >>> from nobsp import NObSP
            >>> _ = torch.manual_seed(0)
            >>> model = torch.nn.Sequential(
            ...     torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
            ... )
            >>> explainer = NObSP(model).fit(torch.randn(500, 3))
            >>> explainer.score(torch.randn(500, 3)) > 0.9
            True
        """
        fitted = self._fitted
        X = fitted.without_group_column(X)
        base = torch.from_numpy(fitted.functions.base_values)
        parts = []
        with running_on(fitted.readout, self.device) as represent:
            for part in fitted.explain(X, represent, batch_size=int(self.batch_size)):
                assert part.values is not None
                residual = part.outputs - base - part.values.sum(1)
                parts.append((part.outputs, residual))
        predictions, residuals = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
        known = np.isfinite(residuals).all(1)
        weights = None
        if sample_weight is not None:
            weights = weights_of(sample_weight, n_rows=len(predictions))[known]

        shares = share_on_rows(
            predictions[known],
            residuals[known],
            weights,
            variance=fitted.functions.state.variance,
        )
        return average_share(shares, multioutput)

    def evidence_source(self) -> EvidenceSource:
        """What an index of neighbours asks of an explainer."""
        fitted = self._fitted
        functions = fitted.functions
        n_outputs = len(functions.output_names)
        signatures = [
            sign_coefficients(table.values.reshape(-1, n_outputs), functions.base_values)
            for table in functions.tables
        ]
        classes = getattr(self.model, "classes_", None)
        return EvidenceSource(
            output_names=functions.output_names,
            link=self.link_,
            about=f"table {fitted.estimate.terms}",
            hash_model=fitted.readout.fingerprint,
            signature=torch.cat(signatures),
            read=self._read_evidence,
            head=(fitted.readout.head.weight, fitted.readout.head.bias),
            classes=None if classes is None else np.asarray(classes),
        )

    def _read_evidence(
        self, X: TableLike, *, wanted: Wanted, progress: bool
    ) -> Iterator[EvidenceBatch]:
        """Representation, logits, and each term's contribution to each output; rows run once."""
        fitted = self._fitted
        n_read = 0
        with running_on(fitted.readout, self.device) as represent:
            for account in fitted.explain(
                X,
                represent,
                batch_size=int(self.batch_size),
                progress=progress,
                with_values=wanted != "none",
            ):
                answered = account.outputs.isfinite().all(1)
                if not bool(answered.all()):
                    row = n_read + int((~answered).nonzero()[0])
                    raise ValueError(
                        f"X has a missing, infinite or unknown value in row {row}; leave the row "
                        "out."
                    )

                n_read += len(answered)
                evidence = None
                if account.values is not None:
                    evidence = account.values.nan_to_num().transpose(1, 2)
                yield EvidenceBatch(account.representation, account.outputs, evidence)

    @keeps_torch_modes
    def removal_effects(
        self,
        X: TableLike,
        *,
        values: int = 16,
        background: TableLike = None,
        progress: bool = False,
    ) -> NDArray[np.float64]:
        """What each prediction loses when a feature is not known, measured on the network itself.

        The prediction less its mean over the values the feature takes in the calibration rows, the
        other features as they are: the sum of all centred terms that the feature takes part in, of
        every order, whichever were fitted. Each counts for all its features, so removal effects do
        not add up to the prediction. Values for which the model has no finite answer beside the
        row's others (a logarithm of a difference) are left out of the mean.

        Args:
            X: Rows, of any kind that `fit` takes.
            values: Most values that take a number's place, one forward pass each, spread evenly
                over its distribution. Of a category all levels do, up to 256.
            background: Rows to take values from; needed for an explainer from a file, which holds
                no rows.
            progress: Whether to show a progress bar on stderr.

        Returns:
            Shape (rows, features, outputs).

        Example:
            >>> import torch
            >>> from nobsp import NObSP
            >>> _ = torch.manual_seed(0)
            >>> model = torch.nn.Sequential(
            ...     torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)
            ... )
            >>> X = torch.randn(200, 3)
            >>> NObSP(model, interactions=0).fit(X).removal_effects(X[:5]).shape
            (5, 3, 2)
        """
        fitted = self._fitted
        require_whole_number("values", values, least=2)
        with fitted.unseen_levels(), running_on(fitted.readout, self.device) as represent:
            return measure_removal(
                fitted,
                represent,
                X,
                most_values=int(values),
                background=background,
                batch_size=int(self.batch_size),
                progress=progress,
            )

    @keeps_torch_modes
    def check_shape(
        self,
        feature: str,
        shape: Shape,
        X: TableLike,
        *,
        tolerance: float | None = None,
        output: int | str | None = None,
        within: tuple[float, float] | None = None,
        most_rows: int | None = 2000,
        confidence: float = 0.95,
        scale: Literal["output", "probability"] = "output",
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> ShapeCheck:
        """Asks the model whether it keeps a shape along a feature, on every row's own line.

        A row's values stay as they are and the feature takes every value of its range. A model of
        trees is asked on each of its steps, so that the answer is exact for the row; others at the
        knots of the feature's table and more densely where the table is steep. A feature of whole
        numbers, such as counts, codes and booleans, takes whole numbers only. Tables certify
        nothing: all that counts are the model's own outputs.

        Args:
            feature: Its name: a number, or a category of numbers; "bounded" can be asked of any
                category.
            shape: "increasing" or "decreasing" (never falls, never rises), "convex" or "concave",
                or "bounded": the feature alone moves no prediction by more than `tolerance`.
            X: Rows: an array, a tensor or a frame. The bound holds for rows drawn as these were.
            tolerance: What may deviate without counting, in units of the output; a ten-thousandth
                of the predictions' spread when None. Must be given for "bounded".
            output: Which output; may be left out where there is only one.
            within: Range of the feature; the calibrated one when None.
            most_rows: Most rows, drawn by chance; all of `X` when None.
            confidence: Of the interval whose upper end is `bound`.
            scale: "output" asks before the model's sigmoid, softmax or exponential, "probability"
                after it. What rises before a sigmoid or an exponential rises after it too; of
                several classes, or bent, it need not.
            sample_weight: How much each row counts for `rate` and `bound`. Rows of weight 0 are
                left out.
            groups: Which rows belong together, such as those of one customer or copies of one row:
                one value per row. Rows of one group are one draw for the bound, which is then
                larger.

        Returns:
            A `ShapeCheck`: share of rows that break it with a bound, the worst break, and
            counterexamples to feed to the model.

        Example:
            >>> import numpy as np, nobsp
            >>> X = np.random.default_rng(0).normal(size=(300, 2))
            >>> explainer = nobsp.NObSP(
            ...     lambda X: np.exp(X[:, 0]) - X[:, 1] ** 2, features=["a", "b"]
            ... ).fit(X)
            >>> explainer.check_shape("a", "increasing", X).holds
            True
            >>> explainer.check_shape("b", "increasing", X).rate
            1.0
        """
        fitted = self._fitted
        with fitted.unseen_levels(), running_on(fitted.readout, self.device) as represent:
            return check_shape(
                fitted,
                represent,
                feature,
                shape,
                fitted.without_group_column(X),
                tolerance=tolerance,
                output=output,
                within=within,
                most_rows=most_rows,
                confidence=confidence,
                scale=scale,
                sample_weight=sample_weight,
                groups=groups,
                batch_size=int(self.batch_size),
            )

    @keeps_torch_modes
    def weak_spots(
        self,
        X: TableLike,
        *,
        below: float = 0.8,
        least_share: float = 0.02,
        most_conditions: int = 3,
        output: int | str | None = None,
    ) -> tuple[WeakSpot, ...]:
        """Regions where the functions explain least.

        A small tree finds them on half of the rows, by the squared residuals; what is told of them
        is measured on the other half. A region counts where R² is low and residuals are clearly
        larger than on all rows: where predictions hardly vary, R² alone is low without any fault of
        the functions. Conditions are on features of one column, not on groups of several.

        Args:
            X: Rows, 200 or more, of any kind that `fit` takes.
            below: The R² that a region must stay below.
            least_share: Share of the rows that it must have.
            most_conditions: Most conditions that describe it.
            output: Which output; all of them when None.

        Returns:
            The regions, the one with the lowest R² first, each with its size, R², and the missing
            interaction that it points to. Empty where there is none.

        Example:
            >>> import numpy as np, nobsp
            >>> X = np.random.default_rng(0).normal(size=(1000, 3))
            >>> nobsp.NObSP(lambda X: np.exp(X[:, 0]) + X[:, 1]).fit(X).weak_spots(X)
            ()
        """
        position = None
        if output is not None:
            position = output_position(output, self.output_names_)
        return find_weak_spots(
            self._explain(X),
            below=below,
            least_share=least_share,
            most_conditions=most_conditions,
            output=position,
        )

    def function(
        self, term: str | Sequence[str], *, output: int | str = 0
    ) -> Callable[..., NDArray[np.float64]]:
        """The learned function of a feature, or of an interaction, as something to call on values.

        Args:
            term: Name of a feature, or the names of a fitted interaction's features.
            output: Which output.

        Returns:
            A function from values to contributions, with one argument a feature, in the order they
            were named: numbers, levels of a category, or rows of values for a feature of several
            columns.

        Example:
            >>> import torch
            >>> from nobsp import NObSP
            >>> model = torch.nn.Sequential(
            ...     torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
            ... )
            >>> explainer = NObSP(
            ...     model, features=["a", "b"], interactions=[("a", "b")]
            ... ).fit(torch.randn(200, 2))
            >>> explainer.function(("a", "b"))([0.0, 1.0], [2.0, 2.0]).shape
            (2,)
        """
        fitted = self._fitted
        names = tuple(term) if isinstance(term, tuple | list) else (term,)
        features = [fitted.columns.features.index(name) for name in names]
        subset = tuple(sorted(features))
        if subset not in fitted.estimate.terms:
            raise ValueError(
                f"{term_name(names)} was not fitted; pass interactions=[{names!r}], or a term of "
                "terms_."
            )
        position = output_position(output, fitted.functions.output_names)

        def read(*members: AnyArray) -> NDArray[np.float64]:
            values, unseen = read_term(fitted.functions, names, members)
            if unseen.any():
                by_feature = {
                    feature: rows[unseen] for feature, rows in zip(features, members, strict=True)
                }
                with running_on(fitted.readout, self.device) as represent:
                    values[unseen] = fitted.account_of_values(
                        represent, subset, by_feature, batch_size=int(self.batch_size)
                    )
            return values[:, position].copy()

        def evaluate(*inputs: torch.Tensor) -> NDArray[np.float64]:
            by_feature = dict(zip(features, inputs, strict=True))
            ordered = [by_feature[feature] for feature in subset]
            with running_on(fitted.readout, self.device) as represent:
                values = fitted.term_values(
                    represent, subset, ordered, batch_size=int(self.batch_size)
                )
            return values[:, position].numpy()

        if fitted.has_table(subset):
            return function_of(names, value_readers(fitted.functions, names), read)
        readers = [
            partial(input_values, fitted.columns, fitted.adapted, feature) for feature in features
        ]
        return function_of(names, readers, evaluate)

    def __getitem__(self, term: str | tuple[str, ...]) -> Callable[..., NDArray[np.float64]]:
        """The learned function of a term, for the first output: `explainer["age"]`.

        A term is a feature or an interaction.
        """
        return self.function(term)

    def __iter__(self) -> None:
        """Says that this is no sequence, as `__getitem__` would make Python believe."""
        raise TypeError("an explainer cannot be iterated over; `terms_` names its functions.")

    def curves(
        self, points: int = 200, *, confidence: float = USUAL_CONFIDENCE, level: float | None = None
    ) -> NativeFrame:
        """Every feature's function with its band, as a tidy table.

        A curve is the feature's average effect: what the model predicts with the feature at x,
        averaged over the other features' values, less its mean over the rows. Where features are
        correlated and there are enough rows, effects that another term explains are taken out;
        `from_average` of the health's terms tells how far that is from partial dependence. The band
        says how far the curve would move had other rows of the same kind been used. It does not
        include how the model would change if trained again. Bands are made at the first call.

        Args:
            points: Points along a numeric feature. Where its table has at most 30 knots within the
                range, these are the points; categories get one row per level.
            confidence: Share of such curves inside the band, point by point.
            level: Former name of `confidence`; goes away with nobsp 1.0.

        Returns:
            Columns feature, output, x (a number, NaN for named levels), level (its name, empty for
            numbers), value, lower, upper. Features made of several numeric columns have no curve.
        """
        confidence = argument_of("level", level, present="confidence", current=confidence)
        return self._fitted.functions.curves(points, confidence=confidence)

    def interaction_strengths(self) -> NativeFrame:
        """Every screened pair with the spread that only both together make, strongest first.

        It is given as a share of the outputs' spread.

        Read off coarse tables over a few background rows. Empty where pairs were not screened
        (`interactions` was 0, or named them). Columns first, second, strength, fitted.
        """
        return self._fitted.functions.interaction_strengths()

    def importance(self, kind: Literal["total", "main"] = "total") -> NativeFrame:
        """Mean absolute contribution of each feature over calibration rows, strongest first.

        Args:
            kind: "total" for the sum of all terms that contain the feature, "main" for its own
                function alone.

        Returns:
            Columns feature, output, importance.
        """
        return self._fitted.functions.importance(kind)

    @keeps_torch_modes
    def health(self, X: TableLike = None) -> Health:
        """What is worth knowing before the numbers are believed, each with what to do about it.

        Args:
            X: Rows to be explained; where given, features that leave the calibrated range are named
                too, and it is said where these rows are explained worse than the headline promises,
                and in which regions R² is below one half (see `weak_spots`).
        """
        fitted = self._fitted
        state = fitted.functions.state
        if X is None:
            return state
        explanation = self._explain(X)
        findings = [*state.findings, *explanation.findings, *weak_spot_findings(explanation)]
        return replace(state, findings=sort_findings(findings))

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        parameters = str(super().__repr__(N_CHAR_MAX))
        if not hasattr(self, "_calibration"):
            return parameters
        return f"{parameters}  # {self._calibration.functions.state.headline_and_warnings}"

    def _repr_html_(self) -> str:
        title = f"{type(self).__name__} of {type(self.model).__name__}"
        if not hasattr(self, "_calibration"):
            return notebook.card(title, notebook.line("Not calibrated yet: call fit with rows."))
        functions: Functions = self._calibration.functions
        return functions._card(title)

    def compile(self) -> Functions:
        """The functions as they are, to be used without the network and without torch.

        Terms without a table (features of several numeric columns, alone or in interactions) need
        the network; they are named in `left_out` and their contributions are missing. As published,
        functions are tabulated along the baseline.

        `Functions.with_classes` makes a classifier of functions whose model does not name its
        classes.
        """
        functions = with_bands(self._fitted.functions)
        classes = classes_of_model(self.model, len(functions.output_names))
        if classes is None:
            return functions
        # Forests average probabilities, and what they average is what is explained.
        are_probabilities = functions.link == "identity" and hasattr(self.model, "predict_proba")
        return replace(functions, classes=classes, are_probabilities=are_probabilities)

    @keeps_torch_modes
    def fewest_features(self, share: float = 0.98, *, X: TableLike = None) -> FewestFeatures:
        """The smallest set of features that still explains the model.

        These take over what the rest had said.

        Features go one after another, the one with the smallest unique contribution first: what is
        lost of the model's outputs when it goes and the functions of the others are fitted anew.
        That answers "can I stop collecting this column", which neither an importance nor a removal
        effect does: of two columns that say the same, one can go.

        Args:
            share: Share of what all features explain on held-out rows that must be left.
            X: Rows to judge by, of any kind that `fit` takes as a table; the calibration rows in
                memory when None.

        Returns:
            The features, the order in which they went, what every number of them explains on
            held-out rows, and their functions, which need no other column.

        Example:
            >>> import numpy as np, nobsp
            >>> from sklearn.linear_model import LinearRegression
            >>> X = np.random.default_rng(0).normal(size=(400, 3))
            >>> model = LinearRegression().fit(X, X[:, 0] + 0.01 * X[:, 1])
            >>> explainer = nobsp.NObSP(model, features=["a", "b", "c"]).fit(X)
            >>> explainer.fewest_features().features
            ('a',)
        """
        # What a pipeline encoded can be drawn, but not all of it can be told well enough to be
        # predicted.
        is_kept = self._fitted.adapted.encode is None
        rows = self.sample_ if X is None and is_kept else X
        if rows is None:
            raise ValueError(
                "X is needed: pass rows of the kind that was calibrated on, as in "
                "fewest_features(X=rows). The explainer does not keep your table."
            )
        rows = self._fitted.without_group_column(rows)
        predictions = self._explain(rows).predictions
        return fewest_features(self.compile(), rows, predictions, share=share)

    def save(self, path: str | os.PathLike[str], *, mergeable: bool = False) -> None:
        """Writes the calibration to one safetensors file; the model itself is not in it.

        Args:
            path: Where to; an existing file is replaced, atomically.
            mergeable: Whether to keep what `merge` needs: the sample of calibration rows, or as
                published the moments. Without, the file is small and holds no row, unless a term
                without a table needs the background rows.
        """
        fitted = self._fitted
        for argument, used in (("sample_weight", fitted.weighted), ("groups", fitted.grouped)):
            if mergeable and used:
                raise ValueError(
                    f"mergeable: a calibration with {argument} cannot be merged; leave it out."
                )
        files.save(path, fitted, self._options(), rows=mergeable)

    @classmethod
    @refusing_arguments({}, owner="NObSP.load", missing=LOAD_ARGUMENTS)
    def load(cls, path: str | os.PathLike[str], model: ModelLike) -> Self:
        """Reads an explainer that `save` wrote.

        Args:
            path: The file.
            model: The very model it was calibrated on; another one is an error.
        """
        stored = files.load(path)
        with damage_in_words(path):
            explainer = cls(model, **stored.options)
            Options.of(vars(explainer))
        explainer._calibration = files.restore(
            stored,
            adapt(model, layout=stored.layout),
            method=METHODS[stored.estimate.reference],
            head=explainer.head,
        )
        return explainer

    @property
    def feature_names_in_(self) -> NDArray[np.object_]:
        """Names of the columns of the calibration table.

        Of a table that has none, the names of the features made of its columns.

        Names of features, which may be made of several columns, are in `functions_.feature_names`.
        """
        return np.array(self._fitted.functions.named_columns(), dtype=object)

    @property
    def feature_names_(self) -> tuple[str, ...]:
        """Former name of `functions_.feature_names`."""
        warn_renamed("feature_names_", "functions_.feature_names (of columns, feature_names_in_)")
        return self._fitted.functions.feature_names

    @property
    def output_names_(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return self._fitted.functions.output_names

    @property
    def terms_(self) -> tuple[tuple[str, ...], ...]:
        """The fitted terms, as names of features."""
        names = self._fitted.columns.features.names
        return tuple(tuple(names[k] for k in term) for term in self._fitted.estimate.terms)

    @property
    def baseline_(self) -> NDArray[np.float64]:
        """The baseline, one value per column of the network's input."""
        return self._fitted.estimate.baseline.numpy().copy()

    @property
    def base_values_(self) -> NDArray[np.float64]:
        """Mean output over the calibration rows."""
        return self._fitted.functions.base_values.copy()

    @property
    def ridge_(self) -> NDArray[np.float64]:
        """Per output, the strength of the ridge, as it was given or as held-out rows chose it."""
        return np.array(self._fitted.estimate.alphas)

    @property
    def explained_(self) -> NDArray[np.float64]:
        """R² per output on held-out rows, which were not used for the coefficients.

        It is the share of the output's variance that is explained.
        """
        return np.array(self._fitted.functions.state.explained)

    @property
    def functions_(self) -> Functions:
        """The functions that have tables, with all that is known; `compile` adds bands."""
        return self._fitted.functions

    @property
    def sample_(self) -> AnyArray | None:
        """Some of the calibration rows, as plots lay them under curves.

        None where there are none in your own units.
        """
        fitted = self._fitted
        sample = fitted.summary.sample
        if not len(sample):
            return None
        if fitted.adapted.encode is None:
            return sample.double().numpy()
        return decoded_rows(fitted.columns, fitted.adapted, fitted.summary, sample)

    @property
    def link_(self) -> str:
        """What the model applies to its logits.

        One of "identity", "softmax", "log_softmax", "sigmoid" and "exp".
        """
        return self._fitted.functions.link

    @property
    def n_features_in_(self) -> int:
        """Columns of the calibration table."""
        return self._fitted.columns.count

    @property
    def plot(self) -> Plots:
        """Plots such as `explainer.plot.curves()` and `explainer.plot.interaction(("a", "b"))`."""
        return Plots(self, ("curves", "health", "importance", "interaction", "interaction_matrix"))

    @property
    def _fitted(self) -> CalibratedModel:
        fitted: CalibratedModel = (
            self._calibration if hasattr(self, "_calibration") else super()._fitted
        )
        return fitted


def _calibration_like(like: object, options: Options) -> CalibratedModel:
    """The calibration that `like` has; an error where it was asked for something else."""
    _require_explainer("like", like)
    assert isinstance(like, NObSP)
    fitted = like._fitted
    options.require_alike(Options.of(vars(like)))
    return fitted


def _require_one_process(run: Run, method: Method, **arguments: object) -> None:
    """Raises a ValueError for weights and groups unless all rows are in this process's memory."""
    supported = method.takes_weights and run.size == 1 and not isinstance(run, RayRun)
    for argument, value in arguments.items():
        if value is not None and not supported:
            raise ValueError(
                f'{argument} needs reference="terms" and one process; leave it out here.'
            )


def _require_plain_rows(mine: CalibratedModel, theirs: CalibratedModel) -> None:
    """Raises a ValueError for calibrations with weights or groups."""
    for argument, used in (
        ("sample_weight", mine.weighted or theirs.weighted),
        ("groups", mine.grouped or theirs.grouped),
    ):
        if used:
            raise ValueError(
                f"calibrations with {argument} cannot be merged; fit all rows at once."
            )


def _require_explainer(name: str, value: object) -> None:
    """Raises a TypeError for whatever is not an `NObSP`."""
    if not isinstance(value, NObSP):
        raise TypeError(f"{name} must be a calibrated NObSP, found {quote(value)}.")
