"""Models that cannot be trained are refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scalestudy.errors import UserError
from scalestudy.models.build import build
from scalestudy.models.catalogue import OwnModel
from scalestudy.models.outputs import check_width


def test_a_model_without_parameters_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("from torch import nn\nclass Empty(nn.Module):\n    pass\n")
    options = OwnModel.model_validate({"import": "empty:Empty"})
    with pytest.raises(UserError, match="`Empty` has no parameter to train"):
        build(options, classes=10, channels=1, image_size=8, task="classification", extensions=tmp_path)


@pytest.mark.parametrize("shape", [(4, 7), (4, 12), (4,), (4, 10, 1)])
def test_logits_that_are_not_one_per_class_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="for data with 10 classes"):
        check_width(torch.zeros(shape), 10)
    check_width(torch.zeros(4, 10), 10)
