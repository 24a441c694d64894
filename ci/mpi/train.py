"""A small transformer, trained by the ranks of an MPI program. Each rank has its own sequences; the gradients are averaged
by MPI_Allreduce. The gradients are cleared before each step's backward pass: by NumPy, or asynchronously by telpher's
fill on the device that the argument names.

Rank 0 prints the losses of all steps, with all bits, then the time of a step and the shares of MPI_Allreduce and of clearing.
With two ranks every sum has two terms, so their order does not matter: the losses have the same bits over every transport.
"""

import sys
from time import perf_counter

import numpy as np

from ranks import MPI, rank, size, world

TOKENS, LENGTH, WIDTH, HEADS, LAYERS, SEQUENCES, STEPS = 16, 24, 64, 2, 2, 8, 30
RATE, DECAYS, TINY = 4e-3, (0.9, 0.99), 1e-5
SHAPES = {"token": (TOKENS, WIDTH), "place": (LENGTH, WIDTH), "out": (WIDTH, TOKENS), "scale": (WIDTH,)}
for layer in range(LAYERS):
    SHAPES |= {
        f"{layer}.scale": (WIDTH,),
        f"{layer}.qkv": (WIDTH, 3 * WIDTH),
        f"{layer}.joined": (WIDTH, WIDTH),
        f"{layer}.scale2": (WIDTH,),
        f"{layer}.wide": (WIDTH, 4 * WIDTH),
        f"{layer}.narrow": (4 * WIDTH, WIDTH),
    }


def views(flat):
    """Returns the parts of an array, each with its name and shape."""
    parts, at = {}, 0
    for name, shape in SHAPES.items():
        count = int(np.prod(shape))
        parts[name] = flat[at : at + count].reshape(shape)
        at += count
    return parts


COUNT = sum(int(np.prod(shape)) for shape in SHAPES.values())
weights, gradients = np.zeros(COUNT, np.float32), np.zeros(COUNT, np.float32)
w, g = views(weights), views(gradients)
FUTURE = np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1)


def normalised(x, name):
    """Scales each row to a variance of 1, and returns the backward pass, too."""
    centred = x - x.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(TINY))
    unit = centred * inverse

    def back(d):
        g[name] += (d * unit).sum((0, 1))
        d = d * w[name]
        return inverse * (d - d.mean(-1, keepdims=True) - unit * (d * unit).mean(-1, keepdims=True))

    return unit * w[name], back


def multiplied(x, name):
    def back(d):
        g[name] += x.reshape(-1, x.shape[-1]).T @ d.reshape(-1, d.shape[-1])
        return d @ w[name].T

    return x @ w[name], back


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(x, name):
    x, norm_back = normalised(x, f"{name}.scale")
    qkv, qkv_back = multiplied(x, f"{name}.qkv")
    # Parts, then sequences, heads, places, and each head's share of the width.
    parts = qkv.reshape(SEQUENCES, LENGTH, 3, HEADS, -1).transpose(2, 0, 3, 1, 4)
    q, k, v = parts
    factor = np.float32((WIDTH // HEADS) ** -0.5)
    p = softmax(q @ k.swapaxes(-1, -2) * factor + FUTURE)
    y, joined_back = multiplied((p @ v).transpose(0, 2, 1, 3).reshape(SEQUENCES, LENGTH, WIDTH), f"{name}.joined")

    def back(d):
        d = joined_back(d).reshape(SEQUENCES, LENGTH, HEADS, -1).transpose(0, 2, 1, 3)
        dp = d @ v.swapaxes(-1, -2)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * factor
        dparts = np.stack([ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ d])
        return norm_back(qkv_back(dparts.transpose(1, 3, 0, 2, 4).reshape(SEQUENCES, LENGTH, 3 * WIDTH)))

    return y, back


def network(x, name):
    x, norm_back = normalised(x, f"{name}.scale2")
    hidden, wide_back = multiplied(x, f"{name}.wide")
    positive = hidden > 0
    y, narrow_back = multiplied(hidden * positive, f"{name}.narrow")
    return y, lambda d: norm_back(wide_back(narrow_back(d) * positive))


def forward(tokens):
    """Returns the loss of a batch, and the pass that adds its gradients."""
    given, expected = np.eye(TOKENS, dtype=np.float32)[tokens[:, :-1]], tokens[:, 1:]
    x, token_back = multiplied(given, "token")
    x = x + w["place"]
    backs = []
    for layer in range(LAYERS):
        for block in (attention, network):
            y, back = block(x, str(layer))
            x = x + y
            backs.append(back)
    x, norm_back = normalised(x, "scale")
    logits, out_back = multiplied(x, "out")
    p = softmax(logits)
    at = (*np.indices(expected.shape), expected)

    def backward():
        d = p.copy()
        d[at] -= 1
        d = norm_back(out_back(d / np.float32(expected.size)))
        for back in reversed(backs):
            d = d + back(d)
        g["place"] += d.sum(0)
        token_back(d)

    return float(-np.log(p[at]).mean(dtype=np.float64)), backward


def batch(random):
    """Sequences that repeat a pattern of four: the next token is known from the fifth one on."""
    return np.tile(random.integers(0, TOKENS, (SEQUENCES, 4)), LENGTH // 4 + 1)[:, : LENGTH + 1]


class Clearing:
    """Clears the gradients, and measures how long the caller is kept."""

    def __init__(self, device):
        self.seconds, self.job, self.mover = 0.0, None, None
        if device != "numpy":
            import telpher

            self.mover = telpher.Mover(device)

    def start(self):
        """The gradients are no longer used. With telpher, they are cleared while the next forward pass computes."""
        begin = perf_counter()
        if self.mover:
            self.job = self.mover.fill_async(gradients, 0)
        else:
            gradients.fill(0)
        self.seconds += perf_counter() - begin

    def finish(self):
        begin = perf_counter()
        if self.job:
            self.job.result()
        self.job = None
        self.seconds += perf_counter() - begin
        assert not gradients.any()


def train(device):
    # All ranks start with the same weights.
    start = np.random.default_rng(1)
    for name, shape in SHAPES.items():
        w[name][:] = 1 if "scale" in name else start.standard_normal(shape, np.float32) * np.float32(shape[0] ** -0.5)
    random = np.random.default_rng(100 + rank)
    mean, square, sums = np.zeros_like(weights), np.zeros_like(weights), np.empty_like(gradients)
    clearing = Clearing(device)
    losses, in_allreduce = [], 0.0
    gradients.fill(7)
    begin = perf_counter()
    for step in range(1, STEPS + 1):
        clearing.start()
        loss, backward = forward(batch(random))
        clearing.finish()
        backward()
        before = perf_counter()
        world.Allreduce(gradients, sums)
        in_allreduce += perf_counter() - before
        sums /= np.float32(size)
        # Adam.
        mean += np.float32(1 - DECAYS[0]) * (sums - mean)
        square += np.float32(1 - DECAYS[1]) * (sums * sums - square)
        mean_now, square_now = mean / np.float32(1 - DECAYS[0] ** step), square / np.float32(1 - DECAYS[1] ** step)
        weights[:] = weights - np.float32(RATE) * mean_now / (np.sqrt(square_now) + np.float32(1e-8))
        losses.append(world.allreduce(loss, MPI.SUM) / size)
    seconds = perf_counter() - begin
    assert losses[-1] < 0.6 * losses[0], losses
    digest = weights.view(np.uint32).astype(np.uint64).sum()
    assert world.allreduce(int(digest), MPI.MAX) == digest, "the ranks have different weights"
    if rank == 0:
        print("losses", *(loss.hex() for loss in losses))
        print(
            f"step {1e3 * seconds / STEPS:.1f} ms, Allreduce of {gradients.nbytes} bytes {100 * in_allreduce / seconds:.1f} %,"
            f" clearing ({device}) {100 * clearing.seconds / seconds:.2f} %, loss {losses[0]:.3f} to {losses[-1]:.3f}",
            flush=True,
        )


train(sys.argv[1] if len(sys.argv) > 1 else "numpy")
