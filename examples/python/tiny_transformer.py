"""A transformer of some 26,000 parameters and a language for it to learn, for the two DiLoCo examples."""

import hashlib

import torch
from torch import nn
from torch.nn import functional as F

SYMBOLS = 8
CONTEXT = 16


class Language:
    """Sequences in which each symbol depends on the two before it; the same language for the same seed.

    A model that knows nothing has a loss of ln 8 = 2.08; nobody can do better than `floor`.
    """

    def __init__(self, seed: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        # After each pair of symbols a few symbols are likely and the rest are rare.
        scores = 3.0 * torch.randn(SYMBOLS, SYMBOLS, SYMBOLS, generator=generator)
        self._next = scores.softmax(dim=2)
        sample = self.sample(256, generator)
        chances = self._next[sample[:, :-2], sample[:, 1:-1]]
        self.floor = -chances.gather(2, sample[:, 2:, None]).log().mean().item()

    def sample(self, count: int, generator: torch.Generator | None = None) -> torch.Tensor:
        """Returns this number of sequences of CONTEXT + 1 symbols."""
        sequences = torch.randint(SYMBOLS, (count, CONTEXT + 1), generator=generator)
        for i in range(2, CONTEXT + 1):
            chances = self._next[sequences[:, i - 2], sequences[:, i - 1]]
            sequences[:, i] = torch.multinomial(chances, 1, generator=generator)[:, 0]
        return sequences


class TinyTransformer(nn.Module):
    """Two blocks of causal self-attention, 32 wide; maps symbols to scores of the symbol that comes next."""

    def __init__(self, width: int = 32, blocks: int = 2) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, width)
        self.places = nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, SYMBOLS)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        x = self.symbols(symbols) + self.places[: symbols.shape[1]]
        for block in self.blocks:
            x = block(x)
        scores: torch.Tensor = self.scores(self.norm(x))
        return scores

    def loss(self, sequences: torch.Tensor) -> torch.Tensor:
        """The mean loss of the prediction of each next symbol."""
        return F.cross_entropy(self(sequences[:, :-1]).flatten(0, 1), sequences[:, 1:].flatten())


class Block(nn.Module):
    """Attention, then a small network, each with a residual connection."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.network = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size, length, width = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).view(size, length, 3, self.heads, -1)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.mix(attended.transpose(1, 2).reshape(size, length, width))
        out: torch.Tensor = x + self.network(x)
        return out


@torch.no_grad()
def evaluate(model: TinyTransformer, language: Language) -> float:
    """The loss on sequences that are the same on all peers."""
    return model.loss(language.sample(128, torch.Generator().manual_seed(2))).item()


def fingerprint(model: nn.Module) -> str:
    """Equal for equal bits."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
