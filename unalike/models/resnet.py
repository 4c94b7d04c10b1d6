"""ResNet18 (He et al. 2016, arXiv:1512.03385), layer names as torchvision has them, so that its weights files fit."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unalike.errors import UnalikeError, first_line, unknown
from unalike.models._options import Channels, Classes, whole
from unalike.models.cnn import NORMS
from unalike.models.start import remembered
from unalike.settings.knobs import Knob


class Block(nn.Module):
    """Two 3×3 convolutions with a skip connection."""

    def __init__(self, channels: int, width: int, stride: int, norm: str):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = NORMS[norm](width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = NORMS[norm](width)
        self.downsample = (
            nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), NORMS[norm](width))
            if stride != 1 or channels != width
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(inner)) + self.downsample(x))


@remembered("resnet18")
class ResNet18(nn.Module):
    """11,181,642 parameters with 10 classes; the 512 features are the mean over the last pictures.

    `norm` is "group" or "batch": averaged running statistics are what fails first when clients are not alike (Hsieh et
    al. 2020, arXiv:1910.00189), so GroupNorm is the default. `stem` is "imagenet" (7×7, stride 2, pooled) or "cifar"
    (3×3, for pictures of 32 or 64 pixels). `weights` is a file of torchvision's names, .pth or .safetensors, as
    FedDC's Tiny ImageNet starts from; its head is taken where the number of classes is the same.
    """

    def __init__(
        self,
        classes: Classes = 10,
        channels: Channels = 3,
        norm: Annotated[str, Knob("how activations are normalised: group or batch")] = "group",
        stem: Annotated[str, Knob("the first layers: imagenet, or cifar for small pictures")] = "imagenet",
        weights: Annotated[str | None, Knob("a file of trained weights to start from", file=True)] = None,
    ):
        super().__init__()
        for what, value, words in (("norm", norm, ("group", "batch")), ("stem", stem, ("imagenet", "cifar"))):
            if value not in words:
                raise unknown(what, value, words)
        small = stem == "cifar"
        size, stride, padding = (3, 1, 1) if small else (7, 2, 3)
        self.conv1 = nn.Conv2d(whole("channels", channels), 64, size, stride, padding, bias=False)
        self.bn1 = NORMS[norm](64)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = nn.Sequential(Block(64, 64, 1, norm), Block(64, 64, 1, norm))
        self.layer2 = nn.Sequential(Block(64, 128, 2, norm), Block(128, 128, 1, norm))
        self.layer3 = nn.Sequential(Block(128, 256, 2, norm), Block(256, 256, 1, norm))
        self.layer4 = nn.Sequential(Block(256, 512, 2, norm), Block(512, 512, 1, norm))
        self.head = nn.Linear(512, whole("classes", classes))
        if weights is not None:
            self.load(weights)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.head(x.mean((2, 3)))

    def load(self, path: str) -> None:
        """Load the weights of a file; everything but the head must be there."""
        given = {f"head.{n[3:]}" if n.startswith("fc.") else n: t for n, t in read_weights(path).items()}
        mine = OrderedDict(self.state_dict())
        for name, tensor in mine.items():
            if name not in given and not name.startswith("head.") and not name.endswith("num_batches_tracked"):
                raise UnalikeError(f"{path} has no {name!r}: it must be a ResNet18 with torchvision's layer names.")
            if name in given and given[name].shape == tensor.shape:
                mine[name] = given[name]
            elif name in given and not name.startswith("head."):
                raise UnalikeError(
                    f"{path} has {name!r} of shape {list(given[name].shape)} and the model {list(tensor.shape)}: "
                    "give the weights of the same stem and channels."
                )
        self.load_state_dict(mine)


def read_weights(path: str) -> dict[str, Tensor]:
    """Return the tensors of a .safetensors file, or of a .pth file, read without running code from it."""
    file = Path(path)
    if not file.is_file():
        raise UnalikeError(f"There is no weights file {path}: give the path of a .pth or .safetensors file.")
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file)
        found = torch.load(file, map_location="cpu", weights_only=True)
        return {str(name): tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}
    except Exception as error:  # each format raises its own errors
        reason = first_line(error)[:120]
        raise UnalikeError(f"{path} cannot be read as weights ({reason}): give a state dict.") from None
