"""FedJAX's federated averaging with its default back end (jit), models written in plain JAX in JAX's own layout."""

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from work import begin

work, clock = begin()


def softmax_regression(params, x):
    return x @ params["weight"] + params["bias"]


def cnn(params, x):
    for name in ("0", "3"):
        x = jax.lax.conv_general_dilated(
            x, params[f"{name}.weight"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + params[f"{name}.bias"])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.reshape(len(x), -1)
    x = jax.nn.relu(x @ params["7.weight"] + params["7.bias"])
    return x @ params["9.weight"] + params["9.bias"]


def to_jax(name, value):
    """PyTorch's layout to JAX's; the first dense layer reads height × width × channels there."""
    if value.ndim == 4:
        return value.transpose(2, 3, 1, 0)
    if name == "7.weight":
        value = value.reshape(len(value), 64, 5, 5).transpose(0, 2, 3, 1).reshape(len(value), -1)
    return value.T


def to_torch(name, value):
    if value.ndim == 4:
        return value.transpose(3, 2, 0, 1)
    value = value.T
    if name == "7.weight":
        value = value.reshape(len(value), 5, 5, 64).transpose(0, 3, 1, 2).reshape(len(value), -1)
    return value


forward = cnn if work.workload == "cnn" else softmax_regression


def loss(params, batch, rng):
    scores = jax.nn.log_softmax(forward(params, batch["x"]))
    return -jnp.mean(jnp.take_along_axis(scores, batch["y"][:, None], axis=1))


if work.workload == "cnn":
    work.x = np.ascontiguousarray(work.x.transpose(0, 2, 3, 1))
work.y = work.y.astype(np.int32)
clock.start()
clients = fedjax.InMemoryFederatedData(
    {c: dict(zip(("x", "y"), work.client(c), strict=True)) for c in range(work.clients)}
)
algorithm = fedjax.algorithms.fed_avg.federated_averaging(
    jax.grad(loss), fedjax.optimizers.sgd(work.lr), fedjax.optimizers.sgd(1.0),
    fedjax.ShuffleRepeatBatchHParams(
        batch_size=work.batch, num_epochs=work.epochs, drop_remainder=False, skip_shuffle=not work.shuffle
    ),
)  # fmt: skip
state = algorithm.init({name: jnp.asarray(to_jax(name, value)) for name, value in work.initial.items()})
key = jax.random.PRNGKey(0)
while clock.more:
    clock.next()
    cohort = work.cohorts[clock.round].tolist()
    keys = jax.random.split(jax.random.fold_in(key, clock.round), len(cohort))
    state, _ = algorithm.apply(state, [(c, data, keys[i]) for i, (c, data) in enumerate(clients.get_clients(cohort))])
    jax.block_until_ready(state.params)
    clock.done(lambda params=state.params: {k: to_torch(k, np.asarray(v)) for k, v in params.items()})
