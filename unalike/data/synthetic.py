"""Two synthetic federations, number for number what the authors' programs draw after `np.random.seed(seed)`.

In both, client k labels x with argmax(x W_k + b_k), and x ~ N(v_k, Σ), Σ_jj = j^-1.2. `alpha` spreads the
labellers (W_k ~ N(u_k, 1), u_k ~ N(0, alpha)), `beta` the inputs (v_k ~ N(B_k, 1), B_k ~ N(0, beta)); both
are standard deviations. The functions `synthetic_*` give raw arrays, `fedprox` and `feddc` a Federation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import numpy as np

from unalike.data.federation import Federation
from unalike.data.options import Alpha, Beta, Clients, Seed, Test
from unalike.data.partition.tools import count
from unalike.draws import check_seed
from unalike.errors import UnalikeError
from unalike.settings.knobs import Knob

Arrays = list[tuple[np.ndarray, np.ndarray]]
Labeller = tuple[np.ndarray, np.ndarray]  # weights [dimension, classes] and bias [classes]


def synthetic_fedprox(alpha: float, beta: float, iid: bool = False, clients: int = 30, seed: int = 0) -> Arrays:
    """Li et al. 2020 (arXiv:1812.06127), FedProx: 60 features, 10 classes, 50 + lognormal(4, 2) samples.

    `iid` is their separate program: one labeller, v_k = 0; alpha and beta are then not used. Even at alpha
    = beta = 0 the clients differ (own W_k and v_k). Sizes are heavy-tailed: a few clients hold most
    samples. Their program takes the argmax after an unguarded exp, which overflows for logits above 709
    (alpha, beta well above 1); this does not.
    """
    random = _random(alpha, beta, clients, seed)
    dimension, classes = 60, 10
    sizes = random.lognormal(4, 2, clients).astype(int) + 50
    if iid:
        shared = _labeller(random, 0.0, dimension, classes)
        return _clients(random, sizes, np.zeros((clients, dimension)), [shared] * clients)
    labeller_means = random.normal(0, alpha, clients)
    input_means = random.normal(0, beta, clients)
    means = np.stack([random.normal(centre, 1, dimension) for centre in input_means])
    return _clients(random, sizes, means, (_labeller(random, mean, dimension, classes) for mean in labeller_means))


def synthetic_feddc(
    alpha: float,
    beta: float,
    iid_solution: bool | None = None,
    iid_data: bool | None = None,
    clients: int = 20,
    dimension: int = 30,
    classes: int = 5,
    samples: int = 200,
    theta: float = 0.0,
    seed: int = 0,
) -> Arrays:
    """FedDyn's and FedDC's `generate_syn_logistic` (gaoliang13/FedDC; arXiv:2111.04263, arXiv:2203.11751).

    `iid_solution` (one labeller from N(0, 1) for all) and `iid_data` (v_k = 0) are their flags; None sets
    them where alpha, or beta, is 0. A flag set to True makes its alpha or beta idle: (1, 0) with
    iid_solution=True is IID. `theta` is the spread of the sizes, lognormal(log(samples), theta); the papers
    use 0.
    """
    random = _random(alpha, beta, clients, seed)
    for word, value in (("dimension", dimension), ("classes", classes), ("samples", samples)):
        count(word, value)
    _spread("theta", theta)
    iid_solution = alpha == 0 if iid_solution is None else iid_solution
    iid_data = beta == 0 if iid_data is None else iid_data
    sizes = random.lognormal(np.log(samples + 1e-3), theta, clients).astype(int)
    labeller_means = random.normal(0, alpha, clients)
    input_means = random.normal(0, beta, clients)
    means = np.zeros((clients, dimension))
    if not iid_data:
        means = np.stack([random.normal(centre, 1, dimension) for centre in input_means])
    shared = _labeller(random, labeller_means[0], dimension, classes)  # drawn always, as they do
    if iid_solution:
        shared = _labeller(random, 0.0, dimension, classes)
        return _clients(random, sizes, means, [shared] * clients)
    return _clients(random, sizes, means, (_labeller(random, mean, dimension, classes) for mean in labeller_means))


def fedprox(
    alpha: Alpha = 0.0,
    beta: Beta = 0.0,
    iid: Annotated[bool, Knob("one labeller and one kind of input")] = False,
    clients: Clients = 30,
    seed: Seed = 0,
    test: Test = 0.2,
) -> Federation:
    """Return `synthetic_fedprox` with a share of every client held out (papers: 0.2; the authors' program: 0.1)."""
    arrays = synthetic_fedprox(alpha, beta, iid, clients, seed)
    return Federation.from_arrays(arrays, classes=10).split_clients(test=test, seed=seed)


def feddc(
    alpha: Alpha = 0.0,
    beta: Beta = 0.0,
    iid_solution: Annotated[bool | None, Knob("one labeller for all; without it, where alpha is 0")] = None,
    iid_data: Annotated[bool | None, Knob("one kind of input for all; without it, where beta is 0")] = None,
    clients: Clients = 20,
    dimension: Annotated[int, Knob("features")] = 30,
    classes: Annotated[int, Knob("how many classes")] = 5,
    samples: Annotated[int, Knob("mean samples per client")] = 200,
    theta: Annotated[float, Knob("how much the clients' sizes differ")] = 0.0,
    seed: Seed = 0,
    test: Test = 0.0,
    global_test: Annotated[bool, Knob("the training set as test set, as in their program")] = True,
) -> Federation:
    """Return `synthetic_feddc` as a federation. **The global test set is the training set**, as in their program.

    So its accuracy is training accuracy. `test=0.2` holds out a share of every client, and the global test
    set is then what was held out; `global_test=False` leaves it out.
    """
    arrays = synthetic_feddc(alpha, beta, iid_solution, iid_data, clients, dimension, classes, samples, theta, seed)
    fed = Federation.from_arrays(arrays, classes=classes).split_clients(test=test, seed=seed)
    if not global_test:
        return fed
    seen = fed.train if fed.test is None else fed.test
    return fed.replace(global_test=(seen.x, seen.y))


def _labeller(random: np.random.RandomState, mean: float, dimension: int, classes: int) -> Labeller:
    return random.normal(mean, 1, (dimension, classes)), random.normal(mean, 1, classes)


def _clients(
    random: np.random.RandomState, sizes: np.ndarray, means: np.ndarray, labellers: Iterable[Labeller]
) -> Arrays:
    """Draw each client's samples of N(mean, Σ) and label them; a client's labeller is drawn just before its samples.

    Σ is diagonal: multivariate_normal without its SVD.
    """
    deviation = np.arange(1, means.shape[1] + 1) ** -0.6
    arrays = []
    for mean, size, (weight, bias) in zip(means, sizes, labellers, strict=True):
        x = mean + random.standard_normal((int(size), len(mean))) * deviation
        arrays.append((x, (x @ weight + bias).argmax(1)))
    return arrays


def _random(alpha: float, beta: float, clients: int, seed: int) -> np.random.RandomState:
    _spread("alpha", alpha)
    _spread("beta", beta)
    count("clients", clients)
    return np.random.RandomState(check_seed(seed, bits=32))


def _spread(word: str, value: float) -> None:
    if not isinstance(value, (int, float)) or not 0 <= value < np.inf:
        raise UnalikeError(f"{word}={value!r} must be a finite number of 0 or more: it is a standard deviation.")
