"""The ensemble head: how much the target's law counts at a position (paper, section 4; method.md 3)."""

import math

import torch
from torch import Tensor, nn

__all__ = ["Head"]


class Head(nn.Module):
    """One logistic unit in float32 over both models' last hidden states: `w = sigmoid(weight . features + bias)`.

    Features are [draft's, target's], each the vector that feeds the LM head at the position which predicts the token.
    An untrained head gives `initial_weight` everywhere.
    """

    def __init__(self, draft_dim: int, target_dim: int, initial_weight: float = 0.5) -> None:
        super().__init__()
        self.draft_dim, self.target_dim = draft_dim, target_dim
        bias = math.log(initial_weight / (1 - initial_weight))
        self.weight_D = nn.Parameter(torch.zeros(draft_dim + target_dim))
        self.bias = nn.Parameter(torch.tensor(bias))

    def forward(self, features: Tensor) -> Tensor:
        """features [..., D_draft + D_target] of any float dtype -> w [...] float32, the weight on the target."""
        return torch.sigmoid(features.float() @ self.weight_D + self.bias)
