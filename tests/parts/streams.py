"""Small networks whose streams and parts are known."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def drawn(network: nn.Module, seed: int = 0) -> nn.Module:
    """The network in double precision with weights from a seed of its own, norms and biases included."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for parameter in network.parameters():
            scale = 0.3 if parameter.ndim == 1 else parameter[0].numel() ** -0.5
            parameter.data = scale * torch.randn_like(parameter) + (parameter.ndim == 1)
    return network.to(torch.float64).eval()


def rows(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def tokens(n_rows: int, length: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 20, (n_rows, length), generator=generator)


class Attention(nn.Module):
    """Two heads, written out."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def per_head(self, x: Tensor) -> Tensor:
        """What each head hands to the output projection, (rows, heads, tokens, width of a head)."""
        n_rows, length, width = x.shape
        qkv = self.qkv(x).view(n_rows, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        weights = (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(-1)
        return weights @ value

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.per_head(x).transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 12), nn.GELU(), nn.Linear(12, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Pre-norm, read at its first token, with or without a norm before the head."""

    def __init__(self, *, last_norm: bool, depth: int = 2, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Linear(3, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width) if last_norm else nn.Identity()
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class Residual(nn.Module):
    """A residual block as in ResNets: a ReLU behind the sum, and a shortcut with weights where channels change."""

    def __init__(self, inside: int, out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, out, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.shortcut = nn.Sequential()
        if inside != out:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, out, 1), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        branch = self.bn2(self.conv2(nn.functional.relu(self.bn1(self.conv1(x)), inplace=True)))
        branch += self.shortcut(x)
        return nn.functional.relu(branch, inplace=True)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.layer1 = nn.Sequential(Residual(4, 4), Residual(4, 4))
        self.layer2 = nn.Sequential(Residual(4, 6))
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.stem(x).relu()))
        return self.fc(x.mean((2, 3)))


class Ensemble(nn.Module):
    """The mean of three networks."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(
            [nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)) for _ in range(3)]
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.members]).mean(0)


class Padded(nn.Module):
    """Texts of several lengths: padding is neither attended to nor counted in the mean over tokens."""

    def __init__(self, *, last_norm: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True)
        norm = nn.LayerNorm(8) if last_norm else None
        self.encoder = nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        padding = x == 0
        encoded = self.encoder(self.embed(x), src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1).to(encoded.dtype)
        return self.head((encoded * kept).sum(1) / kept.sum(1))


class MaskedIfPadded(Padded):
    """The same, with no mask for a batch in which nothing is padded, as language models do."""

    def forward(self, x: Tensor) -> Tensor:
        if bool((x != 0).all()):
            return self.head(self.encoder(self.embed(x)).mean(1))
        return super().forward(x)


def texts() -> Tensor:
    """Token numbers for `Padded`, of two to six tokens."""
    x = tokens(30, 6)
    lengths = 2 + torch.arange(30) % 5
    x[torch.arange(6) >= lengths.unsqueeze(1)] = 0
    return x
