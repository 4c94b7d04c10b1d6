"""Three convolutional networks: those of two papers, layer for layer, and a small one for quick work."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

from torch import nn

from unalike.errors import unknown
from unalike.models._options import Channels, Classes, Norm, Size, Width, whole
from unalike.models.start import remembered

# Groups are as near to four as the channels allow. BatchNorm is here to be compared with: its running
# averages differ from client to client, which is the very thing that hurts when data are not alike.
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "group": lambda channels: nn.GroupNorm(math.gcd(4, channels), channels),
    "batch": nn.BatchNorm2d,
    "none": lambda channels: nn.Identity(),
}


@remembered("cnn-feddc")
def cnn_feddc(classes: Classes = 10) -> nn.Module:
    """The CIFAR network of FedDyn and FedDC, for 3×32×32 images: 797,962 parameters with 10 classes."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(3, 64, 5),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(64, 64, 5),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(64 * 5 * 5, 384),
        relu3=nn.ReLU(),
        fc2=nn.Linear(384, 192),
        relu4=nn.ReLU(),
        head=nn.Linear(192, whole("classes", classes)),
    )
    return nn.Sequential(layers)


@remembered("cnn-fedavg")
def cnn_fedavg(channels: Channels = 1, size: Size = 28, classes: Classes = 10) -> nn.Module:
    """The MNIST network of McMahan et al. (2017), for channels×size×size images: 1,663,370 parameters."""
    side = whole("size", size, least=4) // 4  # two poolings
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(whole("channels", channels), 32, 5, padding=2),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(32, 64, 5, padding=2),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(64 * side * side, 512),
        relu3=nn.ReLU(),
        head=nn.Linear(512, whole("classes", classes)),
    )
    return nn.Sequential(layers)


@remembered("cnn-small")
def small_cnn(channels: Channels, size: Size, classes: Classes, width: Width = 8, norm: Norm = "group") -> nn.Module:
    """Two 3×3 convolutions of `width` and 2·`width` channels, each normalised and pooled, then the head.

    `norm` is "group", "batch" or "none". With 1×8×8 digits and 10 classes it has 1,946 parameters.
    """
    if norm not in NORMS:
        raise unknown("norm", norm, NORMS)
    width, side = whole("width", width), whole("size", size, least=4) // 4
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(whole("channels", channels), width, 3, padding=1),
        norm1=NORMS[norm](width),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(width, 2 * width, 3, padding=1),
        norm2=NORMS[norm](2 * width),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        head=nn.Linear(2 * width * side * side, whole("classes", classes)),
    )
    return nn.Sequential(layers)
