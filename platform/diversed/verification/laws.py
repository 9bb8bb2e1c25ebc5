"""Next-token laws and how to draw from them.

Shapes: B rows, N positions, V vocabulary, K biased tokens. All laws are float32, whatever the dtype of the logits.
"""

import torch
from torch import Tensor

__all__ = ["biased", "draw", "penalised", "residual", "sampling_law", "total_variation"]

TINY = torch.finfo(torch.float32).tiny


def biased(logits_BNV: Tensor, tokens_BK: Tensor, bias_BK: Tensor) -> Tensor:
    """Logits with `bias_BK` added at `tokens_BK`; -inf bans a token. A row with fewer biases has zeros."""
    N = logits_BNV.shape[1]
    index_BNK, bias_BNK = (values_BK[:, None].expand(-1, N, -1) for values_BK in (tokens_BK, bias_BK))
    return logits_BNV.float().scatter_add(-1, index_BNK, bias_BNK)


def penalised(
    logits_BNV: Tensor,
    prompt_BNV: Tensor,
    output_BNV: Tensor,
    repetition_B: Tensor,
    presence_B: Tensor,
    frequency_B: Tensor,
) -> Tensor:
    """Logits under the three usual penalties, given how often each token stands in prompt and output before a position.

    `repetition_B` divides a positive logit and multiplies a negative one of any token seen (as `generate` does; 1 is
    off); `presence_B` is taken from tokens of the output once, `frequency_B` as often as they occur (OpenAI's; 0 is
    off).
    """
    logits_BNV = logits_BNV.float()
    repetition_B11, presence_B11, frequency_B11 = (
        values_B[:, None, None] for values_B in (repetition_B, presence_B, frequency_B)
    )
    seen_BNV = (prompt_BNV + output_BNV) > 0
    scaled_BNV = torch.where(logits_BNV > 0, logits_BNV / repetition_B11, logits_BNV * repetition_B11)
    logits_BNV = torch.where(seen_BNV, scaled_BNV, logits_BNV)
    return logits_BNV - presence_B11 * (output_BNV > 0) - frequency_B11 * output_BNV


def sampling_law(
    logits_BNV: Tensor,
    temperature_B: Tensor | None = None,
    top_k_B: Tensor | None = None,
    top_p_B: Tensor | None = None,
    min_p_B: Tensor | None = None,
) -> Tensor:
    """Logits -> the law tokens are drawn from, [B, N, V] float32.

    Order: temperature, top-k, top-p, min-p, as users of `generate` know it. A row with temperature 0 keeps its soft law
    at temperature 1 (`mixture-argmax`: greedy rows compare soft laws and take an argmax). `temperature_B` 1, `top_k_B`
    0, `top_p_B` 1 and `min_p_B` 0 leave a row alone; None leaves all rows alone and costs nothing.
    """
    if temperature_B is not None:
        logits_BNV = logits_BNV.float() / torch.where(temperature_B > 0, temperature_B, 1.0)[:, None, None]
    if top_k_B is not None or top_p_B is not None:
        logits_BNV = _filtered(logits_BNV.float(), top_k_B, top_p_B)
    law_BNV = logits_BNV.softmax(-1, dtype=torch.float32)
    if min_p_B is None:
        return law_BNV
    floor_BN1 = min_p_B.to(torch.float32)[:, None, None] * law_BNV.amax(-1, keepdim=True)
    kept_BNV = law_BNV.masked_fill(law_BNV < floor_BN1, 0.0)
    return kept_BNV / kept_BNV.sum(-1, keepdim=True)


def _filtered(logits_BNV: Tensor, top_k_B: Tensor | None, top_p_B: Tensor | None) -> Tensor:
    """Logits, -inf for what top-k and top-p leave out. One sort serves both; ranks break ties, so exactly k stay."""
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
    return torch.empty_like(sorted_BNV).scatter_(-1, order_BNV, sorted_BNV)


def draw(law_V: Tensor, u_1: Tensor) -> Tensor:
    """One token per law by inverse transform: [..., V] and [..., 1] -> [...] int64.

    `law` need not be normalised; `u` lies in [0, 1).

    A token of probability zero is never drawn: in float64, u < 1 gives u * total < total, and the first index whose sum
    exceeds the point lies on the support. A float32 sum over a large vocabulary would also bias rare tokens.
    """
    cumulative_V = law_V.cumsum(-1, dtype=torch.float64)
    return torch.searchsorted(cumulative_V, u_1 * cumulative_V[..., -1:], right=True).squeeze(-1)


def total_variation(p_V: Tensor, q_V: Tensor) -> Tensor:
    """`TV(p, q) = 0.5 * sum |p - q|` over the last axis, as `sum (q - p)+`: the same for two laws, and 0 where q = 0
    says that there is no other law."""
    return (q_V - p_V).clamp_min_(0).sum(-1)


def residual(p_V: Tensor, q_V: Tensor) -> Tensor:
    """`(p - q)+`, the replacement law of strict, ensemble and capped verification (method.md 2, 5.5), not normalised.

    Where the difference vanishes (p equal to q up to rounding) it is p itself, as it is where q = 0 (a bonus). Not for
    gradients.
    """
    positive_V = (p_V - q_V).clamp_min_(0)
    return torch.where(positive_V.sum(-1, keepdim=True) > TINY, positive_V, p_V)
