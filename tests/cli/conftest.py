"""A small network in every kind of file a command takes, and a table it was trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

from nobsp.cli import main

FACTORY = '''
"""Makes the network whose weights are in a file."""
import torch
from PIL import Image
from torch import nn

def house():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

ready = house()
number = 3
'''


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, its network, and nothing that a test may change."""
    folder = tmp_path_factory.mktemp("home")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4))
    frame = pd.DataFrame(x, columns=["age", "income", "oslo", "rome"])
    frame["price"] = np.abs(x[:, 0]) + x[:, 1]
    frame.to_csv(folder / "houses.csv", index=False)
    frame.to_csv(folder / "houses-semicolon.csv", index=False, sep=";")
    frame.to_parquet(folder / "houses.parquet")
    frame[:60].to_csv(folder / "fresh.csv", index=False)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)).eval()
    program = torch.export.export(
        net, (torch.zeros(3, 4),), dynamic_shapes=({0: torch.export.Dim("rows")},)
    )
    torch.export.save(program, folder / "house.pt2")
    from safetensors.torch import save_file

    save_file(net.state_dict(), folder / "house.safetensors")
    (folder / "shop.py").write_text(FACTORY, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of small images with a line across or down, and a network that takes them."""
    folder = tmp_path_factory.mktemp("gallery")
    rng = np.random.default_rng(0)
    for name, each in (("images", 3), ("more", 20)):
        for kind in ("across", "down"):
            (folder / name / kind).mkdir(parents=True)
            for number in range(each):
                pixels = rng.integers(0, 60, (12, 12)).astype(np.uint8)
                line = int(rng.integers(1, 11))
                pixels[(line, slice(None)) if kind == "across" else (slice(None), line)] = 255
                Image.fromarray(pixels).save(folder / name / kind / f"{number}.png")
    for name in ("empty", "broken", "uneven"):
        (folder / name).mkdir()
    (folder / "broken" / "a.png").write_bytes(b"no image")
    for number, side in enumerate((12, 4)):
        Image.fromarray(np.zeros((side + (side == 4), side), np.uint8)).save(
            folder / "uneven" / f"{number}.png"
        )
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU())
    net = nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2)).eval()
    example = torch.zeros(3, 1, 12, 12)
    program = torch.export.export(
        net, (example,), dynamic_shapes=({0: torch.export.Dim("images")},)
    )
    torch.export.save(program, folder / "net.pt2")
    _teach(net)
    program = torch.export.export(
        net, (example,), dynamic_shapes=({0: torch.export.Dim("images")},)
    )
    torch.export.save(program, folder / "trained.pt2")
    return folder


def _teach(net: nn.Sequential) -> None:
    """Writes down kernels that see lines across and down: weights that were trained differ between processors."""
    across = torch.tensor([-1.0, 2.0, -1.0])[:, None].expand(3, 3)
    conv, head = net[0][0], net[-1]
    with torch.no_grad():
        conv.weight.copy_(torch.stack([across] * 3 + [across.T] * 3)[:, None])
        conv.bias.copy_(-torch.tensor([1.5, 2.0, 2.5, 1.5, 2.0, 2.5]))
        head.weight.copy_(4.0 * torch.tensor([[1.0, 1, 1, -1, -1, -1], [-1, -1, -1, 1, 1, 1]]))
        head.bias.zero_()


@dataclass(frozen=True)
class Finished:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


@pytest.fixture
def nobsp(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Finished]:
    """Runs a command in this process, in the folder with the table."""
    monkeypatch.chdir(home)

    def run(*words: object) -> Finished:
        code = main([str(word) for word in words])
        said = capsys.readouterr()
        return Finished(code, said.out, said.err)

    return run
