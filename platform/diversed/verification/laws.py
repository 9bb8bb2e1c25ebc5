"""Next-token laws and how to draw from them.

Shapes: B rows, N positions, V vocabulary. All laws are float32, whatever the dtype of the logits.
"""

import torch
from torch import Tensor

__all__ = ["draw", "residual", "sampling_law", "total_variation"]


def sampling_law(
    logits_BNV: Tensor,
    temperature_B: Tensor | None = None,
    top_k_B: Tensor | None = None,
    top_p_B: Tensor | None = None,
) -> Tensor:
    """Logits -> the law tokens are drawn from, [B, N, V] float32.

    Order: temperature, top-k, top-p, as users of `generate` know it. A row with temperature 0 keeps its soft law at
    temperature 1 (`mixture-argmax`: greedy rows compare soft laws and take an argmax). `temperature_B` 1, `top_k_B` 0
    and `top_p_B` 1 leave a row alone; None leaves all rows alone and costs nothing.
    """
    logits_BNV = logits_BNV.float()
    if temperature_B is not None:
        logits_BNV = logits_BNV / torch.where(temperature_B > 0, temperature_B, 1.0)[:, None, None]
    if top_k_B is None and top_p_B is None:
        return logits_BNV.softmax(-1)
    # One sort serves both filters. Ranks break ties, so exactly k tokens stay.
    sorted_BNV, order_BNV = logits_BNV.sort(dim=-1, descending=True, stable=True)
    V = logits_BNV.shape[-1]
    if top_k_B is not None:
        rank_V = torch.arange(V, device=logits_BNV.device)
        keep_k_B11 = torch.where(top_k_B > 0, top_k_B, V)[:, None, None]
        sorted_BNV = sorted_BNV.masked_fill(rank_V >= keep_k_B11, -torch.inf)
    if top_p_B is not None:
        mass_BNV = sorted_BNV.softmax(-1)
        before_BNV = mass_BNV.cumsum(-1) - mass_BNV
        limit_B11 = torch.where(top_p_B < 1, top_p_B.to(torch.float32), torch.inf)[:, None, None]
        sorted_BNV = sorted_BNV.masked_fill(before_BNV >= limit_B11, -torch.inf)
    return torch.empty_like(sorted_BNV).scatter_(-1, order_BNV, sorted_BNV).softmax(-1)


def draw(law_BV: Tensor, u_B: Tensor) -> Tensor:
    """One token per row by inverse transform, [B] int64; `law` need not be normalised, `u` in [0, 1).

    A token of probability zero is never drawn: in float64, u < 1 gives u * total < total, and the first index whose sum
    exceeds the point lies on the support. A float32 sum over a large vocabulary would also bias rare tokens.
    """
    cumulative_BV = law_BV.cumsum(-1, dtype=torch.float64)
    point_B1 = u_B[..., None] * cumulative_BV[..., -1:]
    return torch.searchsorted(cumulative_BV, point_B1, right=True).squeeze(-1)


def total_variation(p_V: Tensor, q_V: Tensor) -> Tensor:
    """`TV(p, q) = 0.5 * sum |p - q|` over the last axis."""
    return 0.5 * (p_V - q_V).abs().sum(-1)


def residual(p_V: Tensor, q_V: Tensor) -> Tensor:
    """`norm((p - q)+)`, the replacement law of strict, ensemble and capped verification (method.md 2, 5.5).

    Where the difference vanishes (p equal to q up to rounding, or q = 0 at a bonus position) it is p itself.
    """
    positive_V = (p_V - q_V).clamp_min(0)
    mass_1 = positive_V.sum(-1, keepdim=True)
    return torch.where(
        mass_1 > torch.finfo(p_V.dtype).tiny, positive_V / mass_1.clamp_min(torch.finfo(p_V.dtype).tiny), p_V
    )
