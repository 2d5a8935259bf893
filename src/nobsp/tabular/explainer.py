"""NObSP for tables: a trained network in, the functions it has learned out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from nobsp.network.adapted import adapt
from nobsp.network.batches import with_progress
from nobsp.network.on_ray import is_ray
from nobsp.network.ranks import together
from nobsp.tabular import keeping
from nobsp.tabular.calibration import contributions
from nobsp.tabular.columns import input_values
from nobsp.tabular.compiled import CompiledExplainer
from nobsp.tabular.curves import curve_table
from nobsp.tabular.effects import stand_ins, total_effects
from nobsp.tabular.explanation import Explanation, output_position, term_name
from nobsp.tabular.fitted import Fitted
from nobsp.tabular.fitting import calibrate, measured
from nobsp.tabular.health import Health, examine
from nobsp.tabular.interactions import screen
from nobsp.tabular.on_ray import calibrate_on_ray, require_ray_alone
from nobsp.tabular.options import checked, find_readout, require_alike
from nobsp.tabular.reading import as_model_takes, running_on


class NObSP(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Writes every prediction of a network as base + one function per feature + interactions + residual.

    The network is split at its linear last layer. Inputs in which only some features are active are pushed
    through it, and oblique projections find how each feature's representation carries the output.

    Args:
        model: A torch module with a linear last layer, a fitted scikit-learn MLPClassifier or MLPRegressor, or a
            Pipeline that ends in one. It is only run, never changed.
        features: None for one feature per column; one name per column; or a dictionary of names and their
            column or columns, which are then one feature, fitted jointly.
        baseline: What an inactive feature is set to: "mean" (categories: the most frequent level), "zero",
            "median", "mode", one value per column, or a dictionary from feature to one of these.
        reference: "terms" fits all terms at once, each along all the others; "complement" is Algorithm 1 of
            the paper, each feature along the network's view of all other features.
        interactions: "auto" to fit the pairs that pay off on held-out rows; 0 for single features only; a number
            of pairs, the strongest are taken; or a list of pairs and triples of feature names.
        ridge: Strength of the regularisation. "auto" takes the one of 1e-4, 1e-3, … 1 that leaves least unexplained
            on held-out blocks of rows, and 1e-4 where rows abound or terms are fitted one by one.
        ridge_scale: "relative" to the matrix it is added to, or "absolute" as in the paper.
        head: Name of the last linear layer, or the layer; found by running the model when None.
        output_names: Names of the outputs.
        device: Where to run the model; where it is when None.
        batch_size: Most rows in one forward call.

    Example:
        >>> import torch
        >>> from nobsp import NObSP
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
        >>> X = torch.randn(500, 3)
        >>> explainer = NObSP(model, features=["a", "b", "c"]).fit(X)
        >>> explanation = explainer(X[:5])
        >>> explanation.terms
        (('a',), ('b',), ('c',), ...
        >>> account = explanation.base_values + explanation.values.sum(1) + explanation.residual
        >>> bool((abs(account - explanation.predictions) < 1e-12).all())
        True
    """

    def __init__(
        self,
        model: Any,
        *,
        features: Sequence[str] | Mapping[str, Any] | None = None,
        baseline: Any = "mean",
        reference: Literal["terms", "complement"] = "terms",
        interactions: int | Literal["auto"] | Sequence[Sequence[str]] = "auto",
        ridge: float | Literal["auto"] = "auto",
        ridge_scale: Literal["relative", "absolute"] = "relative",
        head: str | nn.Module | None = None,
        output_names: Sequence[str] | None = None,
        device: torch.device | str | None = None,
        batch_size: int = 4096,
    ) -> None:
        self.model = model
        self.features = features
        self.baseline = baseline
        self.reference = reference
        self.interactions = interactions
        self.ridge = ridge
        self.ridge_scale = ridge_scale
        self.head = head
        self.output_names = output_names
        self.device = device
        self.batch_size = batch_size

    @classmethod
    def as_published(cls, model: Any, **options: Any) -> Self:
        """The paper's Algorithm 1 to the letter: complement reference, absolute ridge of 1e-4, no interactions."""
        published: dict[str, Any] = {
            "reference": "complement",
            "interactions": 0,
            "ridge": 1e-4,
            "ridge_scale": "absolute",
        }
        return cls(model, **published | options)

    # ------------------------------------------------------------------ calibration

    def fit(
        self,
        X: Any,
        y: None = None,
        *,
        progress: bool = False,
        like: NObSP | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
        memory_limit: int | str = "4GiB",
        distributed: bool = True,
    ) -> Self:
        """Calibrates on `X`; a former calibration is replaced.

        Memory does not grow with the rows. Data that can be read only once is read once, which needs a
        baseline that does not depend on it; its first rows then fix each term's basis.

        Where `torch.distributed` is initialised, every rank calls `fit` with its own share of the rows, which may
        be uneven or empty, and ends with the same calibration on all rows. It is the one a single process
        would reach on the shares one after another, but for rounding; past 16,384 rows, bases are fixed from
        another sample of the rows. Where held-out rows choose the ridge, other rows are held out. An error on one
        rank is an error on all.

        A Ray dataset is read and added up by the workers of its cluster, which load the model once; only sums come
        back, in the order of the rows. What was said of ranks holds for its batches. Workers that die are replaced.

        Args:
            X: Array, tensor, pandas or polars frame, DataLoader (labels in its batches are left aside), an iterable
                of batches, or a `ray.data.Dataset` of numbers (or of arrays, one a row).
            y: Not used: the network's own outputs are explained. Passing labels is an error.
            progress: Whether to show a progress bar on stderr.
            like: A calibrated explainer of the same model whose baseline, terms and bases are taken over. What
                was calibrated so on other rows can be merged with it. Rows with a level of a category that it did
                not see are an error, unless its bases hold all that the level does.
            checkpoint: A file in which the calibration is kept while it is under way. After an interruption the
                same call, on the same rows in the same order, goes on from there and ends with the same
                calibration to rounding; rows that were added up are read past, not run again. A file of other rows,
                options or of another model is an error. It is removed when the calibration is done. Of several
                ranks, each has its own file beside it.
            checkpoint_every: Seconds between two writes of that file, which are what an interruption can cost.
            memory_limit: Bytes that bases, sums and batches under way are laid out to fit in, as a number or as
                "4GB" or "512MiB"; the network, the data and the libraries are not in it. With
                reference="complement" each feature has sums of its own; where these do not fit, features are
                fitted in several passes over `X`, which must then be readable again, and `merge`, bands and
                checkpoints are not to be had. While interactions are chosen automatically, more may be taken.
            distributed: Whether to calibrate together with the other ranks where `torch.distributed` is
                initialised; without, this process calibrates alone, on what it was given.

        Returns:
            The explainer itself.
        """
        with together(distributed) as ranks:
            if y is not None:  # in here, so that other ranks learn of it
                raise TypeError("fit takes no labels: it explains the network's own outputs. Call fit(X).")
            options = checked(self.get_params(deep=False))
            known = None if like is None else like._fitted
            if like is not None:
                require_alike(options, checked(like.get_params(deep=False)))
            if is_ray(X):
                require_ray_alone(ranks, checkpoint)
                self._fit = calibrate_on_ray(
                    X, self.model, options, like=known, progress=progress, memory_limit=memory_limit
                )
                return self
            self._fit = calibrate(
                X,
                self.model,
                options,
                ranks=ranks,
                like=known,
                progress=progress,
                checkpoint=checkpoint,
                checkpoint_every=checkpoint_every,
                memory_limit=memory_limit,
            )
        return self

    def merge(self, other: NObSP) -> Self:
        """Adds another calibration's rows to this one: the sums are those of one pass over both.

        Baseline, terms and bases must be the same; `fit(X, like=explainer)` makes them so. They stay those of the
        first rows, so these should be typical: what only later rows hold may have no direction in the bases.
        """
        mine, theirs = self._fitted, other._fitted
        mine.require_moments("merge")
        theirs.require_moments("merge")
        mine.require_same_model(theirs.readout)
        if mine.plan.fingerprint() != theirs.plan.fingerprint():
            raise ValueError(
                "the two calibrations have different baselines, terms or bases and cannot be added up; calibrate the "
                "second with fit(X, like=first)."
            )
        joined = mine.merged(theirs)
        with running_on(joined.readout, self.device) as represent:
            self._fit = measured(joined, represent)
        return self

    # ------------------------------------------------------------------ explaining

    def __call__(self, X: Any, *, progress: bool = False) -> Explanation:
        """The same as `explain`."""
        return self.explain(X, progress=progress)

    def explain(self, X: Any, *, progress: bool = False) -> Explanation:
        """The account of every row's prediction.

        Args:
            X: Rows, of any kind that `fit` takes.
            progress: Whether to show a progress bar on stderr.

        Raises:
            NotFittedError: If `fit` has not been called.
            ValueError: If columns do not match, a value is not finite, or a category was not seen in calibration.
        """
        fitted = self._fitted
        source = fitted.source(X, batch_size=self.batch_size)
        values, predictions, rows = [], [], []
        outside: list[Tensor] = []
        with running_on(fitted.readout, self.device) as represent:
            for batch in with_progress(source, total=source.rows, enabled=progress, description="explaining"):
                inputs = as_model_takes(batch, fitted.readout)
                outside.append(fitted.outside(inputs, first_row=sum(len(part) for part in outside)))
                predictions.append(fitted.readout.logits(represent(inputs)).cpu())
                values.append(contributions(fitted.plan, fitted.solution, represent, inputs))
                if not hasattr(X, "shape"):
                    rows.append(batch.clone())  # a stream may fill the same buffer again
            origin = as_model_takes(fitted.plan.isolation.baseline[None], fitted.readout)
            at_baseline = contributions(fitted.plan, fitted.solution, represent, origin)[0]
        account, total = torch.cat(values), torch.cat(predictions)
        return Explanation(
            values=account.numpy(),
            base_values=fitted.solution.base.numpy().copy(),
            residual=(total - fitted.solution.base - account.sum(1)).numpy(),
            predictions=total.numpy(),
            terms=self.terms_,
            feature_names=self.feature_names_,
            output_names=fitted.output_names,
            data=X if hasattr(X, "shape") else torch.cat(rows).numpy(),
            outside=torch.cat(outside).numpy(),
            baseline_contributions=at_baseline.numpy(),
            explainer=self,
        )

    def total_effects(
        self, X: Any, *, values: int = 16, background: Any = None, progress: bool = False
    ) -> NDArray[np.float64]:
        """What each prediction owes to a feature, alone and together with any others.

        The prediction less its mean over the values the feature takes in the calibration rows, the other
        features as they are in the row: the sum of all centred terms that the feature takes part in, of every
        order, measured on the network itself. No interaction is missing, whichever were fitted. Each counts
        for all its features, so total effects do not add up to the prediction. A feature that the network
        ignores has none.

        Args:
            X: Rows, of any kind that `fit` takes.
            values: Most values that take a number's place, one forward pass each. All there are, if no more;
                otherwise spread evenly over its distribution. Of a category all levels do, up to 256.
            background: Rows to take values from instead of the calibration rows; needed for an explainer
                from a file, which holds no rows.
            progress: Whether to show a progress bar on stderr.

        Returns:
            Shape (rows, features, outputs).

        Raises:
            NotFittedError: If `fit` has not been called.
            ValueError: If columns do not match, a value is not finite, or the calibration rows are not at hand.

        Example:
            >>> import torch
            >>> from nobsp import NObSP
            >>> _ = torch.manual_seed(0)
            >>> model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
            >>> X = torch.randn(200, 3)
            >>> NObSP(model, interactions=0).fit(X).total_effects(X[:5]).shape
            (5, 3, 2)
        """
        fitted = self._fitted
        if isinstance(values, bool) or not isinstance(values, int | np.integer) or values < 2:
            raise ValueError(f"values must be a whole number of at least 2, found {values!r}.")
        replaced = stand_ins(fitted, int(values), background, batch_size=self.batch_size)
        source = fitted.source(X, batch_size=self.batch_size)
        effects: list[Tensor] = []
        with running_on(fitted.readout, self.device) as represent:
            for batch in with_progress(source, total=source.rows, enabled=progress, description="explaining"):
                inputs = as_model_takes(batch, fitted.readout)
                fitted.outside(inputs, first_row=sum(map(len, effects)))
                effects.append(total_effects(represent, fitted.readout, inputs, replaced, self.batch_size))
        return torch.cat(effects).numpy()

    def function(self, term: str | Sequence[str], *, output: int | str = 0) -> Callable[..., NDArray[np.float64]]:
        """The learned function of a feature, or of an interaction, as something to call on values.

        Args:
            term: Name of a feature, or the names of a fitted interaction's features.
            output: Which output.

        Returns:
            A function from values to contributions, with one argument a feature, in the order they were named:
            values as the caller writes them (numbers, or levels of a category; rows of values for a feature
            of several columns).

        Example:
            >>> import torch
            >>> from nobsp import NObSP
            >>> _ = torch.manual_seed(0)
            >>> model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
            >>> explainer = NObSP(model, features=["a", "b"], interactions=[("a", "b")]).fit(torch.randn(200, 2))
            >>> explainer.function("a")([0.0, 1.0]).shape
            (2,)
            >>> explainer.function(("a", "b"))([0.0, 1.0], [2.0, 2.0]).shape
            (2,)
        """
        fitted = self._fitted
        named = tuple(term) if isinstance(term, tuple | list) else (term,)
        asked = [fitted.columns.features.index(name) for name in named]
        place = tuple(sorted(asked))
        if place not in fitted.plan.terms:
            raise ValueError(
                f"{term_name(named)} was not fitted; terms_ names the terms there are, and NObSP(model, "
                f"interactions=[{named!r}]) fits this one."
            )
        chosen = output_position(output, fitted.output_names)

        def evaluate(*values: Any) -> NDArray[np.float64]:
            if len(values) != len(asked):
                raise TypeError(f"the function of {term_name(named)} takes {len(asked)} arrays, found {len(values)}.")
            given = {
                position: input_values(fitted.columns, fitted.adapted, position, one)
                for position, one in zip(asked, values, strict=True)
            }
            lengths = [len(one) for one in given.values()]
            if len(set(lengths)) > 1:
                raise ValueError(f"the values of {term_name(named)} must be equally many, found {lengths}.")
            if lengths[0] == 0:
                return np.zeros(0)
            for position, one in given.items():
                fitted.require_seen(position, one)
            with running_on(fitted.readout, self.device) as represent:
                return fitted.term_values(represent, place, [given[k] for k in place])[:, chosen].numpy()

        return evaluate

    def curves(self, points: int = 200, *, level: float = 0.9) -> Any:
        """Every feature's function with its band, as a tidy table.

        The band says how far the curve would move had other rows of the same kind been used to calibrate: it
        is a pointwise bootstrap over blocks of calibration rows, and does not know of the network's own
        training.

        Args:
            points: Points along a numeric feature; categories get one row per level.
            level: Share of bootstrap curves inside the band, point by point.

        Returns:
            Columns feature, output, x (a number, NaN for named levels), level (its name, empty for numbers),
            value, lower, upper; a frame of the kind the explainer was calibrated on, or a dictionary of
            arrays. Features made of several numeric columns have no curve and are left out.
        """
        fitted = self._fitted
        if isinstance(points, bool) or not isinstance(points, int | np.integer) or points < 2:
            raise ValueError(f"points must be a whole number of at least 2, found {points!r}.")
        if isinstance(level, str) or not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, found {level!r}.")
        with running_on(fitted.readout, self.device) as represent:
            table = curve_table(fitted, represent, points=int(points), level=float(level))
        return fitted.table(table)

    # ------------------------------------------------------------------ what the calibration tells

    def interaction_strengths(self) -> Any:
        """Every pair with the share of the outputs' spread that only both together make, strongest first.

        Pairs are measured on a subsample of at most 256 rows, at one forward row per pair and sampled row.

        Returns:
            Columns first, second, strength, fitted.
        """
        fitted = self._fitted
        screening = fitted.screening
        if screening is None:
            with running_on(fitted.readout, self.device) as represent:
                sample = as_model_takes(fitted.summary.sample, fitted.readout)
                if len(sample) == 0:
                    raise ValueError(
                        "pairs were not screened before this explainer was saved, and its rows are not kept in the "
                        'file; calibrate with interactions="auto" or a number.'
                    )
                screening = screen(fitted.plan.isolation, fitted.readout, represent, sample)
            self._fit = fitted.screened(screening)
        names, chosen = self.feature_names_, set(fitted.plan.terms)
        return fitted.table(
            {
                "first": np.array([names[a] for a, _ in screening.strengths], dtype=object),
                "second": np.array([names[b] for _, b in screening.strengths], dtype=object),
                "strength": np.array(list(screening.strengths.values()), dtype=np.float64),
                "fitted": np.array([pair in chosen for pair in screening.strengths], dtype=bool),
            }
        )

    def importance(self, kind: Literal["main", "total"] = "main") -> Any:
        """Mean absolute contribution of each feature over calibration rows, strongest first.

        Args:
            kind: "main" for the feature's own function, "total" for the sum of all terms it takes part in.

        Returns:
            Columns feature, output, importance.
        """
        if kind not in ("main", "total"):
            raise ValueError(f'kind must be "main" or "total", found {kind!r}.')
        fitted = self._fitted
        sizes = fitted.importance[kind]
        order = np.argsort(-sizes.sum(1), kind="stable")
        outputs = len(fitted.output_names)
        return fitted.table(
            {
                "feature": np.repeat(np.array(self.feature_names_, dtype=object)[order], outputs),
                "output": np.tile(np.array(fitted.output_names, dtype=object), len(order)),
                "importance": sizes[order].ravel(),
            }
        )

    def health(self, X: Any = None) -> Health:
        """What is worth knowing before the numbers are believed, each with what to do about it.

        Args:
            X: Rows to be explained; where given, features that leave the calibrated range are named too.
        """
        fitted = self._fitted
        outside = None
        if X is not None:
            source = fitted.source(X, batch_size=self.batch_size)
            outside = torch.cat(
                [fitted.outside(as_model_takes(b, fitted.readout), strict=False) for b in source]
            ).numpy()
        return examine(
            fitted.plan,
            fitted.solution,
            fitted.parts,
            rows=fitted.summary.rows,
            width=fitted.readout.width,
            filled=fitted.filled,
            explained=fitted.explained,
            output_names=fitted.output_names,
            twins=fitted.twins,
            outside=outside,
        )

    # ------------------------------------------------------------------ without the network

    def compile(
        self,
        tolerance: float = 1e-6,
        *,
        pairs: Literal["grid", "network"] = "grid",
        reach: float = 0.5,
        grid_size: int = 65536,
    ) -> CompiledExplainer:
        """Every term's function as a table that explains with numpy alone, and fits in a small file.

        A function of one number through a piecewise-linear network (ReLU and its kin) is kept exactly, by its
        kinks. Through a smooth one it is refined until it is within the tolerance. Categories are tables.
        Pairs of numbers, and features of several columns of numbers, are grids, linear along each side; they
        seldom come as close. What was reached is measured and kept in `errors`. A network in single precision
        is known only to its own rounding, which is then part of the error.

        Args:
            tolerance: How far a contribution may be off, as a share of the output's `spread`: the largest
                standard deviation of a single feature's contribution over its calibrated range.
            pairs: "grid" to compile interactions too; "network" to leave them out of the tables.
            reach: How far beyond the calibrated range the network is followed, as a share of the range on
                either side; from there on a straight line continues.
            grid_size: Most nodes of one grid.

        Raises:
            NotFittedError: If `fit` has not been called.
            ValueError: If there are triples to compile, or a category has too many levels.
        """
        from nobsp.tabular.compiling import compile_explainer

        for name, value in (("tolerance", tolerance), ("reach", reach)):
            if isinstance(value, str | bool) or not 0 <= value < float("inf") or (name == "tolerance" and not value):
                raise ValueError(f"{name} must be a positive number, found {value!r}.")
        if pairs not in ("grid", "network"):
            raise ValueError(f'pairs must be "grid" or "network", found {pairs!r}.')
        if isinstance(grid_size, bool) or not isinstance(grid_size, int | np.integer) or grid_size < 16:
            raise ValueError(f"grid_size must be a whole number of at least 16, found {grid_size!r}.")
        return compile_explainer(
            self._fitted,
            device=self.device,
            tolerance=float(tolerance),
            pairs=pairs,
            reach=float(reach),
            grid_size=int(grid_size),
        )

    # ------------------------------------------------------------------ files

    def save(self, path: str | os.PathLike[str], *, moments: bool = True) -> None:
        """Writes the calibration to one safetensors file; the model itself and the data are not in it.

        Args:
            path: Where to; an existing file is replaced, atomically.
            moments: Whether to keep the moments, which `merge` and bands need; without them the file is small.
        """
        keeping.save(path, self._fitted, self._options(), moments=moments)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: Any) -> Self:
        """Reads an explainer that `save` wrote.

        Args:
            path: The file.
            model: The very model it was calibrated on; another one is an error.
        """
        adapted = adapt(model)
        options, restore = keeping.load(path)
        explainer = cls(model, **options)
        explainer._fit = restore(adapted, lambda probe: find_readout(adapted.module, probe, head=explainer.head))
        return explainer

    # ------------------------------------------------------------------ scikit-learn manners

    @property
    def feature_names_(self) -> tuple[str, ...]:
        """Names of the features."""
        return self._fitted.columns.features.names

    @property
    def output_names_(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return self._fitted.output_names

    @property
    def terms_(self) -> tuple[tuple[str, ...], ...]:
        """The fitted terms, as names of features."""
        names = self.feature_names_
        return tuple(tuple(names[k] for k in term) for term in self._fitted.plan.terms)

    @property
    def baseline_(self) -> NDArray[np.float64]:
        """The baseline, one value per column of the network's input."""
        return self._fitted.plan.isolation.baseline.numpy().copy()

    @property
    def base_values_(self) -> NDArray[np.float64]:
        """Mean output over the calibration rows."""
        return self._fitted.solution.base.numpy().copy()

    @property
    def link_(self) -> str:
        """What the model applies to its logits: "identity", "softmax", "log_softmax", "sigmoid" or "exp"."""
        return self._fitted.adapted.link or self._fitted.readout.link

    @property
    def n_features_in_(self) -> int:
        """Columns of the calibration table."""
        return self._fitted.columns.count

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fit")

    def __sklearn_clone__(self) -> NObSP:
        # scikit-learn would copy a torch model and un-fit a scikit-learn one; the model is a guest and stays.
        return type(self)(self.model, **self._options())

    def _options(self) -> dict[str, Any]:
        return {name: value for name, value in self.get_params(deep=False).items() if name != "model"}

    @property
    def _fitted(self) -> Fitted:
        if not hasattr(self, "_fit"):
            raise NotFittedError("This NObSP is not calibrated yet; call fit(X) first.")
        return self._fit
