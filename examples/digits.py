"""The main job, on handwritten digits: which label would matter most?

A small network is trained on 20 labelled digits. Then, without retraining:
its tangent kernel, what it would predict after training to convergence, what every further label
would change, and 40 labels asked for one at a time, the view of the pool moving with each answer.
"""

import time

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import labelahead as la

START, MORE, TEST = 20, 40, 400


def main() -> None:
    """Run everything and print it as tables."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # small matrices: on a busy machine threads wait for each other
    x, y, one_hot = digits()
    order = torch.randperm(len(x))
    labelled, pool, test = order[:START], order[START:-TEST], order[-TEST:]
    model = trained(x[labelled], one_hot[labelled])
    with torch.no_grad():
        outputs = model(x)

    say(f"\nHandwritten digits: {START} labelled, {len(pool)} in the pool, {TEST} for testing.\n")
    start = time.perf_counter()
    K = la.kernel(model, x)
    seconds = time.perf_counter() - start
    weights = sum(p.numel() for p in model.parameters())
    say(f"1. Tangent kernel of a network of {weights:,} weights, between all {len(x):,} digits")
    say(f"   {seconds:.2f} s; the gradients, {weights * len(x) * 4e-6:.0f} MB, were never built\n")

    start = time.perf_counter()
    post = la.prior(outputs, K, noise=1e-3).condition(labelled, one_hot[labelled])
    seconds = time.perf_counter() - start
    # From nothing, not from the network's outputs: those have seen every label.
    blank = la.prior(torch.zeros_like(outputs), K, noise=1e-3)
    left_out = la.leave_one_out(blank.condition(labelled, one_hot[labelled])) + one_hot[labelled]
    guess = 100 * float((left_out.argmax(1) == y[labelled]).double().mean())
    say("2. Linearised network: predictions after training to the end, without training")
    say(f"   the network now         {accuracy(outputs, y, test):5.1f} % of the test digits right")
    say(f"   linearised              {accuracy(post.mean, y, test):5.1f} %   ({seconds:.2f} s)")
    say(f"   leave-one-out estimate  {guess:5.1f} %   (from the {START} labels alone)\n")

    view = la.acquisition.view(post, pool)
    best_labels(view)
    one_at_a_time(view, y, one_hot, test)


def best_labels(view: la.acquisition.View) -> None:
    """The best next label by each criterion, and what its answer would change."""
    say("3. The best next label by each criterion, and how many digits of the pool would change")
    say("   their mind for each possible answer\n")
    say("   criterion  digit no.  looks like     0    1    2    3    4    5    6    7    8    9")
    say("   ---------  ---------  ----------  " + "-" * 50)
    now = view.posterior.mean[view.candidates].argmax(1)
    answers = torch.eye(10, dtype=torch.float64)
    for name in la.ACQUISITIONS:
        position, _ = la.acquisition.best(view, name)
        futures = la.lookahead(view.posterior, [position] * 10, answers, evaluate=view.candidates)
        changed = (torch.cat(list(futures)).argmax(2) != now).sum(1).tolist()
        looks = int(view.posterior.mean[position].argmax())
        say(f"   {name:<9}  {position:>9}  {looks:>10}  " + "".join(f"{c:>5}" for c in changed))
    say()


def one_at_a_time(view: la.acquisition.View, y: Tensor, one_hot: Tensor, test: Tensor) -> None:
    """Label by look-ahead and at random; nothing is retrained."""
    rng = torch.Generator().manual_seed(1)
    say(f"4. {MORE} more labels, one at a time, never retraining: test digits right\n")
    say("   labels  asked by flip  asked by mlmoc  at random")
    say("   ------  -------------  --------------  ---------")
    views = {"flip": view, "mlmoc": view, "random": view}
    seconds = []
    for count in range(MORE + 1):
        if count % 10 == 0:
            right = [accuracy(v.posterior.mean, y, test) for v in views.values()]
            say("   {:>6}  {:>11.1f} %  {:>12.1f} %  {:>7.1f} %".format(START + count, *right))
        for name, v in views.items():
            start = time.perf_counter()
            if name == "random":
                at = int(v.candidates[torch.randint(len(v.candidates), (1,), generator=rng)])
            else:
                at, _ = la.acquisition.best(v, name)
            views[name] = v.condition([at], one_hot[[at]])
            if name == "flip" and count:
                seconds.append(time.perf_counter() - start)
    typical = 1000 * sorted(seconds)[len(seconds) // 2]
    say(f"\n   From an answer to the next question: {typical:.0f} ms (flip, median).\n")


def say(line: str = "") -> None:
    """Print at once, also through a pipe."""
    print(line, flush=True)


def digits() -> tuple[Tensor, Tensor, Tensor]:
    """1,797 digits of 8×8 pixels (n, 64), their classes (n,) and one-hot targets (n, 10)."""
    data = load_digits()
    x = torch.tensor(data.data, dtype=torch.float32) / 8 - 1
    y = torch.tensor(data.target)
    return x, y, nn.functional.one_hot(y).double()


def trained(x: Tensor, targets: Tensor) -> nn.Module:
    """A network of two hidden layers, trained with squared loss."""
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(120):
        optimiser.zero_grad()
        (model(x) - targets.float()).square().mean().backward()
        optimiser.step()
    return model.eval()


def accuracy(outputs: Tensor, y: Tensor, at: Tensor) -> float:
    """Percent right."""
    return 100 * float((outputs[at].argmax(1) == y[at]).double().mean())


if __name__ == "__main__":
    main()
