"""The head is found by running the model, and read exactly; the errors say what was found."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from nobsp.network import Readout
from nobsp.network.readout import NotAFunctionError
from tests.processes import LONGEST_RUN, run_threads
from tests.tolerances import SINGLE, assert_all_same_to_rounding, assert_same_to_rounding


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class Residual(nn.Module):
    """The head is declared first, so that its place in the module list says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 3)
        self.enter = nn.Linear(5, 16)
        self.block = nn.Sequential(
            nn.LayerNorm(16), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 16)
        )

    def forward(self, x: Tensor) -> Any:
        h = self.enter(x)
        return self.head(h + self.block(h))


class Wrapped(nn.Module):
    """A small network whose logits leave through `finish`."""

    def __init__(self, finish: Callable[[Tensor], Any], outputs: int = 3) -> None:
        super().__init__()
        self.body = nn.Linear(5, 8)
        self.head = nn.Linear(8, outputs)
        self.finish = finish

    def forward(self, x: Tensor) -> Any:
        return self.finish(self.head(torch.relu(self.body(x))))


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 8)
        self.heads = nn.ModuleDict({"price": nn.Linear(8, 1), "colour": nn.Linear(8, 3)})

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.relu(self.body(x))
        return self.heads["price"](h), self.heads["colour"](h)


def mlp(*, outputs: int = 3, bias: bool = True) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, outputs, bias=bias)
    )


def busy(activation: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(5, 16),
        nn.BatchNorm1d(16),
        activation,
        nn.Dropout(0.5),
        nn.LayerNorm(16),
        nn.Linear(16, 2),
    )


def rows(n: int = 32) -> Tensor:
    return torch.randn(n, 5)


def assert_reads(model: nn.Module, x: Tensor, logits: Tensor, **options: Any) -> Readout:
    """The readout's W z + b are the given logits, on rows other than the probe."""
    readout = Readout.find(model, rows(), **options)
    z = readout.represent(x)
    assert z.shape == (len(x), readout.width)
    torch.testing.assert_close(
        readout.logits(z).float(), logits.reshape(len(x), -1).float(), atol=1e-5, rtol=1e-5
    )
    return readout


@pytest.mark.parametrize(
    "model",
    [
        mlp(),
        mlp(outputs=1),
        mlp(bias=False),
        Residual(),
        *(busy(a) for a in (nn.GELU(), nn.SiLU(), nn.SELU())),
    ],
    ids=["mlp", "one output", "bias-free", "residual", "gelu", "silu", "selu"],
)
def test_logits_of_the_representation_are_the_output(model: nn.Module) -> None:
    x = rows()
    readout = assert_reads(model, x, model.eval()(x))
    assert readout.link == "identity"
    assert readout.head.weight.dtype == torch.float64


def test_bias_free_head_has_a_bias_of_zeros() -> None:
    head = Readout.find(mlp(bias=False), rows()).head
    assert torch.equal(head.bias, torch.zeros(3, dtype=torch.float64))


def test_head_is_not_taken_by_position() -> None:
    assert Readout.find(Residual(), rows()).head.name == "head"


def test_a_bias_of_one_number_may_be_a_slice_of_others() -> None:
    model = mlp(outputs=1)
    head = Readout.find(model, rows()).head.name
    before = Readout.find(model, rows()).fingerprint()
    layer = model.get_submodule(head)
    layer.bias = nn.Parameter(layer.bias.detach()[:, None].expand(1, 3).clone()[:, 0])
    assert layer.bias.stride() == (3,)
    assert Readout.find(model, rows()).fingerprint() == before


def test_a_model_that_answers_otherwise_the_next_time_is_refused() -> None:
    class Drifting(Residual):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("runs", torch.ones(()))

        def forward(self, x: Tensor) -> Any:
            self.runs += 1
            return self.head(self.enter(x) * self.runs)

    model = Drifting()
    with pytest.raises(NotAFunctionError, match="not deterministic"):
        Readout.find(model, rows())
    assert float(model.runs) == 1


@pytest.mark.parametrize(
    ("finish", "link"),
    [
        (nn.Softmax(dim=1), "softmax"),
        (nn.LogSoftmax(dim=1), "log_softmax"),
        (torch.sigmoid, "sigmoid"),
        (lambda y: y[:, None, :], "identity"),
        (lambda y: y.sigmoid_(), "sigmoid"),
    ],
)
def test_what_follows_the_head_is_recognised(finish: Callable[[Tensor], Tensor], link: str) -> None:
    model = Wrapped(finish)
    x = rows()
    logits = model.head(torch.relu(model.body(x)))
    readout = assert_reads(model, x, logits)
    assert (readout.link, readout.head.name) == (link, "head")


@pytest.mark.parametrize("n", [1, 32])
def test_squeezed_output_is_one_output(n: int) -> None:
    readout = Readout.find(Wrapped(lambda y: y.squeeze(), outputs=1), rows(n))
    assert (readout.outputs, readout.link) == (1, "identity")


@dataclass
class Result:
    loss: Tensor | None
    logits: Tensor


@dataclass
class Prediction:
    rank: str
    value: Tensor


class Pair(NamedTuple):
    logits: Tensor
    extra: Tensor


@pytest.mark.parametrize(
    "finish",
    [
        lambda y: {"loss": torch.zeros(()), "logits": y},
        lambda y: {"prediction": y, "norm": y.norm()},
        lambda y: (y, torch.zeros(len(y), 7)),
        lambda y: [torch.zeros(len(y), 3), y],
        lambda y: Result(None, y),
        lambda y: Prediction("first", y),
        lambda y: Pair(y, y.exp()),
        lambda y: (y.softmax(1), y),
    ],
    ids=[
        "logits key",
        "other key",
        "tuple",
        "list",
        "dataclass",
        "plain dataclass",
        "namedtuple",
        "twice",
    ],
)
def test_logits_are_found_in_structured_outputs(finish: Callable[[Tensor], Any]) -> None:
    model = Wrapped(finish)
    x = rows()
    readout = assert_reads(model, x, model.head(torch.relu(model.body(x))))
    assert readout.link == "identity"


class Shared(nn.Module):
    """One layer, called three times; the call at `returned` is the output."""

    def __init__(self, returned: int) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)
        self.returned = returned

    def forward(self, x: Tensor) -> Any:
        results = []
        for _ in range(3):
            results.append(self.layer(x))
            x = torch.tanh(results[-1])
        return results[self.returned]


@pytest.mark.parametrize("returned", [0, 1, 2])
def test_shared_layer_is_read_at_the_call_that_makes_the_output(returned: int) -> None:
    model = Shared(returned)
    x = rows()
    assert_reads(model, x, model(x))


def test_a_shared_layer_returned_twice_is_refused() -> None:
    model = Shared(0)
    model.forward = lambda x: (model.layer(x), model.layer(torch.tanh(x)))  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="'layer' is called several times"):
        Readout.find(model, rows())


class Identical(nn.Module):
    """The last layer is the identity, so two layers explain the output."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 3)
        self.first = nn.Linear(5, 3)
        nn.init.eye_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.first(x))


def test_the_last_executed_of_two_matching_layers_is_the_head() -> None:
    assert Readout.find(Identical(), rows()).head.name == "last"


@pytest.mark.parametrize(("name", "outputs"), [("heads.price", 1), ("heads.colour", 3)])
def test_one_of_several_heads_is_chosen_by_name_or_module(name: str, outputs: int) -> None:
    model = TwoHeads()
    x = rows()
    wanted = model(x)[0 if outputs == 1 else 1]
    assert assert_reads(model, x, wanted, head=name).outputs == outputs
    assert assert_reads(model, x, wanted, head=model.get_submodule(name)).head.name == name


def test_several_heads_without_a_choice_are_listed() -> None:
    with pytest.raises(
        ValueError, match=r"2 heads: 'heads.price', 'heads.colour'; choose one, e.g. head="
    ):
        Readout.find(TwoHeads(), rows())
    with pytest.raises(ValueError, match="head names a container with 2 heads"):
        Readout.find(TwoHeads(), rows(), head="heads")


def test_a_container_means_the_head_inside_it() -> None:
    model = nn.Sequential()
    model.add_module("body", nn.Linear(5, 8))
    model.add_module(
        "classifier", nn.Sequential(nn.Dropout(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    )
    assert Readout.find(model, rows(), head="classifier").head.name == "classifier.3"


def test_a_misspelt_head_gets_the_close_matches() -> None:
    with pytest.raises(ValueError, match=r"did you mean 'heads.colour'"):
        Readout.find(TwoHeads(), rows(), head="heads.color")


@pytest.mark.parametrize(
    ("head", "error", "said"),
    [
        (nn.Linear(8, 3), ValueError, "not part of the model"),
        ("1", ValueError, "is a ReLU without a linear layer"),
        (3, TypeError, "must be a layer's name"),
        ("0", ValueError, "comes from no linear layer"),
    ],
)
def test_a_head_that_cannot_be_one_is_refused(head: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Readout.find(mlp(), rows(), head=head)


@pytest.mark.parametrize("size", [1, 4])
def test_pointwise_convolution_before_average_pooling_is_a_head(size: int) -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 3, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    images = torch.randn(8, 2, size, size)
    readout = Readout.find(model, images)
    assert (readout.head.name, readout.width) == ("2", 6)
    z = readout.represent(images)
    torch.testing.assert_close(readout.logits(z).float(), model(images))


def test_pointwise_convolution_over_a_sequence_is_a_head() -> None:
    model = nn.Sequential(
        nn.Conv1d(2, 6, 1), nn.ReLU(), nn.Conv1d(6, 3, 1, bias=False), nn.AdaptiveAvgPool1d(1)
    )
    x = torch.randn(8, 2, 7)
    readout = Readout.find(model, x)
    torch.testing.assert_close(readout.logits(readout.represent(x)).float(), model(x).squeeze(-1))


def test_a_nonlinearity_between_convolution_and_pooling_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(ValueError, match="the closest is '0'"):
        Readout.find(model, torch.randn(8, 2, 4, 4))


@pytest.mark.parametrize("finish", [nn.Softplus(), torch.exp, lambda y: y * 1.01, torch.tanh])
def test_a_model_that_goes_on_after_its_head_is_refused(finish: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(
        ValueError, match=r"not W z \+ b of any linear layer: the closest is 'head'"
    ):
        Readout.find(Wrapped(finish), rows())


@pytest.mark.parametrize("finish", [lambda y: y, lambda y: y[:, -1], lambda y: y.mean(1)])
def test_a_head_applied_at_every_position_is_refused(finish: Callable[[Tensor], Tensor]) -> None:
    model = Wrapped(finish)
    with pytest.raises(ValueError, match="'head' is applied at each of 6 positions"):
        Readout.find(model, torch.randn(8, 6, 5))


def test_a_model_without_linear_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="no linear layer"):
        Readout.find(nn.Sequential(nn.ReLU()), rows())


def test_a_layer_used_without_being_called_is_named() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Any:
            return nn.functional.linear(x, self.fc.weight)

    with pytest.raises(ValueError, match="never called as a module: 'fc'"):
        Readout.find(Functional(), rows())


def test_outputs_that_are_not_finite_are_named() -> None:
    model = mlp()
    with torch.no_grad():
        model[-1].bias[1] = float("nan")  # type: ignore[operator]
    with pytest.raises(ValueError, match=r"is nan in row 0 of the probe \(output 1\)"):
        Readout.find(model, rows())


@pytest.mark.parametrize("probe", [torch.zeros(0, 5), torch.tensor(1.0), [1.0]])
def test_a_probe_without_rows_is_refused(probe: Any) -> None:
    with pytest.raises(ValueError, match="probe must be a tensor with at least one row"):
        Readout.find(mlp(), probe)


def test_uninitialised_lazy_layers_are_refused_and_initialised_ones_work() -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2))
    with pytest.raises(ValueError, match=r"not initialised yet \('0.weight'\)"):
        Readout.find(model, rows())
    model(rows())
    assert Readout.find(model, rows()).head.name == "2"


def test_parametrized_head_is_read_through_its_parametrization() -> None:
    model = nn.Sequential(
        nn.Linear(5, 8), nn.ReLU(), nn.utils.parametrizations.weight_norm(nn.Linear(8, 2))
    )
    x = rows()
    assert_reads(model, x, model(x))


def test_spectral_norm_is_not_advanced() -> None:
    model = nn.Sequential(
        nn.Linear(5, 8), nn.ReLU(), nn.utils.parametrizations.spectral_norm(nn.Linear(8, 2))
    )
    before = {name: value.clone() for name, value in model.train().state_dict().items()}
    Readout.find(model, rows())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_data_parallel_is_unwrapped() -> None:
    model = mlp()
    x = rows()
    readout = assert_reads(nn.DataParallel(model), x, model(x))
    assert readout.module is model
    assert Readout.find(nn.DataParallel(model), x, head="module.4").head.name == "4"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", ["function", "method", "inner"])
def test_compiled_models_are_read_eagerly(how: str) -> None:
    model = Residual()
    x = rows()
    expected = model(x)
    compiled: Any = model
    if how == "function":
        compiled = torch.compile(model, backend="eager")
    elif how == "method":
        model.compile(backend="eager")
    else:
        model.head = torch.compile(model.head, backend="eager")  # type: ignore[assignment]
    with torch.no_grad():
        compiled(x)
    readout = assert_reads(compiled, x, expected)
    assert readout.head.name == "head"


def test_scripted_models_are_refused() -> None:
    script = torch.jit.ScriptModule()
    with pytest.raises(TypeError, match="TorchScript"):
        Readout.find(script, rows())


def test_integer_input_stays_integer_where_the_model_takes_integers() -> None:
    model = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 2))
    codes = torch.randint(0, 7, (32, 3))
    readout = Readout.find(model, codes)
    assert readout.integer
    assert readout.embedded_columns == (0, 1, 2)
    assert_same_to_rounding(
        readout.represent(codes), readout.represent(codes.double()), within=SINGLE
    )
    with pytest.raises(ValueError, match="the model takes integers"):
        readout.represent(codes + 0.5)


def test_whole_numbers_go_to_a_float_model_as_floats() -> None:
    model = mlp()
    table = torch.randint(0, 9, (16, 5))
    readout = Readout.find(model, table)
    assert not readout.integer
    assert_same_to_rounding(
        readout.represent(table), readout.represent(table.float()), within=SINGLE
    )


def test_rows_are_brought_to_the_models_precision() -> None:
    readout = Readout.find(mlp().double(), rows())
    assert readout.represent(rows()).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_runs_or_says_why_not(dtype: torch.dtype) -> None:
    model = mlp().to(dtype)
    x = rows()
    try:
        expected = model(x.to(dtype))
    except RuntimeError:
        with pytest.raises(TypeError, match=r"cannot run it in that precision .*float\(\)"):
            Readout.find(model, x)
        return
    readout = Readout.find(model, x)
    z = readout.represent(x)
    assert z.dtype == dtype
    torch.testing.assert_close(readout.logits(z).to(dtype), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    "message", ["\"addmm\" not implemented for 'Half'", "could not create a primitive"]
)
def test_an_operation_missing_in_half_precision_is_explained(message: str) -> None:
    def finish(y: Tensor) -> Tensor:
        raise RuntimeError(message)

    with pytest.raises(TypeError, match="model is float16 and cpu cannot run it"):
        Readout.find(Wrapped(finish).half(), rows())
    with pytest.raises(RuntimeError, match=message):
        Readout.find(Wrapped(finish), rows())


def test_a_model_that_is_its_own_head_is_read() -> None:
    model = nn.Linear(5, 2)
    x = rows()
    assert assert_reads(model, x, model(x)).width == 5


def test_another_number_of_columns_is_explained() -> None:
    with pytest.raises(
        ValueError, match=r"the model cannot take rows with 4 columns .*it was trained on"
    ):
        Readout.find(mlp(), torch.randn(8, 4))
    with pytest.raises(ValueError, match="the model cannot take rows with 6 columns"):
        Readout.find(mlp(), rows()).represent(torch.randn(8, 6))


def test_no_rows_have_an_empty_representation() -> None:
    assert Readout.find(mlp(), rows()).represent(torch.zeros(0, 5)).shape == (0, 8)


class Overwriting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Any:
        h = self.body(x)
        y = self.head(h)
        h.zero_()
        return y


def test_a_representation_the_model_overwrites_is_copied_in_time() -> None:
    model = Overwriting()
    x = rows()
    assert_reads(model, x, model(x))


def test_a_head_called_less_often_than_on_the_probe_is_an_error() -> None:
    class Moody(Shared):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x) if len(x) > 2 else x

    readout = Readout.find(Moody(2), rows())
    with pytest.raises(RuntimeError, match="'layer' was called 0 times"):
        readout.represent(rows(2))


def test_fingerprint_is_of_the_weights_and_the_head() -> None:
    model, x = TwoHeads(), rows()
    price = Readout.find(model, x, head="heads.price").fingerprint()
    assert price == Readout.find(nn.DataParallel(model), rows(), head="heads.price").fingerprint()
    assert price != Readout.find(model, x, head="heads.colour").fingerprint()
    with torch.no_grad():
        model.body.weight[0, 0] += 1e-6
    assert price != Readout.find(model, x, head="heads.price").fingerprint()


def test_fingerprint_covers_every_dtype_and_shape() -> None:
    model = busy(nn.GELU())
    model.register_buffer("scale", torch.tensor(1.5, dtype=torch.bfloat16))
    model.register_buffer("seen", torch.zeros(0))
    before = Readout.find(model, rows()).fingerprint()
    model.scale.add_(1)  # type: ignore[operator]
    assert len(before) == 64
    assert before != Readout.find(model, rows()).fingerprint()


def test_threads_do_not_mix_their_captures() -> None:
    model = busy(nn.GELU()).train()
    readout = Readout.find(model, rows())
    inputs = [rows(64) for _ in range(8)]
    expected = [readout.represent(x) for x in inputs]
    wrong: list[int] = []
    start = threading.Barrier(len(inputs), timeout=LONGEST_RUN)

    def work(number: int) -> None:
        start.wait()
        for _ in range(50):
            if not torch.allclose(
                readout.represent(inputs[number]), expected[number], rtol=SINGLE, atol=SINGLE
            ):
                wrong.append(number)

    run_threads(*(partial(work, number) for number in range(len(inputs))))
    assert wrong == []
    assert all(part.training for part in model.modules())


def test_one_context_serves_several_threads() -> None:
    readout = Readout.find(mlp(), rows())
    a, b = rows(64), rows(64)
    expected = {"a": readout.represent(a), "b": readout.represent(b)}
    got: dict[str, Tensor] = {}
    with readout.running() as represent:
        run_threads(
            lambda: got.update(a=represent(a)),
            lambda: got.update(b=represent(b)),
        )
    assert_all_same_to_rounding(got, expected, within=SINGLE)
