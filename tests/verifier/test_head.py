import math

import pytest
import torch

from diversed.verifier import Head


@pytest.mark.parametrize("initial_weight", [0.5, 0.1, 0.9])
def test_an_untrained_head_gives_its_initial_weight_everywhere(initial_weight):
    features_BND = 100 * torch.randn(3, 5, 7)
    w_BN = Head(3, 4, initial_weight)(features_BND)
    assert w_BN.shape == (3, 5)
    assert torch.allclose(w_BN, torch.full((3, 5), initial_weight), atol=1e-7)


def test_features_are_the_draft_s_then_the_target_s():
    head = Head(2, 3)
    with torch.no_grad():
        head.weight_D.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0, -2.0]))
    draft_D, target_D = torch.tensor([0.5, 9.0]), torch.tensor([9.0, 9.0, 0.25])
    w_2 = head(torch.stack([torch.cat([draft_D, target_D]), torch.cat([draft_D, torch.zeros(3)])]))
    assert w_2.tolist() == pytest.approx([0.5, 1 / (1 + math.exp(-0.5))], abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_features_are_weighed_in_float32(dtype):
    torch.manual_seed(0)
    head = Head(8, 8)
    torch.nn.init.normal_(head.weight_D)
    features_BD = torch.randn(4, 16).to(dtype)
    w_B = head(features_BD)
    assert w_B.dtype == torch.float32
    assert torch.equal(w_B, head(features_BD.float()))
