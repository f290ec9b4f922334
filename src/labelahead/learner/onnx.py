"""An exported model as one module, from items to probabilities, and as ONNX."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labelahead.data.class_names import ClassNameGuesser
from labelahead.data.preprocessing import PICTURES, Preprocessor
from labelahead.errors import InputError, LabelaheadError, ModelError, import_extra
from labelahead.gp.calibration import MAX_CLASSES_BY_QUADRATURE, gauss_hermite
from labelahead.inference.exact import MIN_VARIANCE, ExactModel, mix_kernels
from labelahead.models.image_encoder import BACKBONES, load_backbone, scale_pixels

__all__ = ["ExportGraph", "PreprocessingModule", "write_onnx"]

OPSET = 18
TOLERANCE = 1e-4  # of probabilities and variances, compared with our own
EXAMPLES = 5


class PreprocessingModule(nn.Module):
    """Convert items as they were read to inputs of the network."""

    mean: Tensor
    std: Tensor
    names_embeddings: Tensor
    names_mean: Tensor
    names_deviation: Tensor

    def __init__(self, reading: Preprocessor) -> None:
        super().__init__()
        backbone = reading.features if reading.kind == PICTURES else None
        if backbone is not None and backbone not in BACKBONES:
            raise InputError(
                f"the model uses image features by {reading.features!r}, which this version of "
                "labelahead does not know; "
                f"expected one of {', '.join(BACKBONES)}"
            )
        self.trunk = None if backbone is None else load_backbone(backbone)
        whole = reading.features is not None or reading.mean.numel() == 1
        column = reading.mean.shape if whole else (-1, *[1] * (len(reading.shape) - 1))
        self.register_buffer("mean", reading.mean.view(column))
        self.register_buffer("std", reading.std.view(column))
        self.guess_width = reading.guess_width
        self.has_class_names = reading.class_names is not None
        if reading.class_names is not None:
            for key, tensor in asdict(reading.class_names).items():
                self.register_buffer(f"names_{key}", tensor)

    def forward(self, x: Tensor) -> Tensor:
        """Convert (n, *shape) to (n, ...) float32."""
        values = x if self.trunk is None else self.trunk.features(scale_pixels(x))
        rows = ((values.to(self.mean.dtype) - self.mean) / self.std).float()
        if self.guess_width:  # nobody has guessed about these items
            rows = torch.cat([rows, torch.zeros_like(rows[:, :1]).repeat(1, self.guess_width)], 1)
        if self.has_class_names:
            names = ClassNameGuesser(self.names_embeddings, self.names_mean, self.names_deviation)
            guess = names.guess(values[:, : names.embeddings.shape[1]]) - 1 / names.classes
            rows = torch.cat([rows, guess.float()], 1)
        return rows


class VarianceModule(nn.Module):
    """`ExactModel.predict_variance` in operations that ONNX supports."""

    white: Tensor  # (L, L), the inverse of the system's Cholesky factor

    def __init__(self, model: ExactModel) -> None:
        super().__init__()
        self.weights = model.get_mixture().weights
        self.support = model.take_features(model.support)
        self.register_buffer("white", model.compute_whitening())

    def kernel(self, units: Tensor) -> Tensor:
        """Return the kernel (n, L) between unit rows (n, d) and the labelled items."""
        return mix_kernels(units @ self.support.T, self.weights)

    def forward(self, K: Tensor) -> Tensor:
        """Return the variances (n,) from the kernel (n, L) with the labelled items."""
        return (1 - (K.double() @ self.white.T).square().sum(1)).clamp_min(0.0)


class ExportGraph(nn.Module):
    """Items as they were read (n, *shape) -> probabilities (n, C), and variances (n,) of the exact
    learner.

    It repeats `ExportedModel.outputs` without data-dependent control flow; `write_onnx` compares
    the two.
    """

    def __init__(
        self, front: PreprocessingModule | None, network: nn.Module, loss: str, classes: int
    ) -> None:
        super().__init__()
        self.front = front
        self.network = network
        self.loss = loss
        self.classes = classes
        self.spread: VarianceModule | None = None
        if isinstance(network, ExactModel) and len(network.support):
            self.spread = VarianceModule(network)
            self.factor = network.ensure_variance_scale()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return both as float32."""
        x = x if self.front is None else self.front(x)
        if self.spread is None:
            return (self._probabilities(self.network(x)),)
        model = self.network
        assert isinstance(model, ExactModel)
        units = model.normalise_rows(x)
        K = self.spread.kernel(model.take_features(units))
        outputs, variance = model.prior_mean(units) + K.double() @ model.alpha, self.spread(K)
        spread = self.factor * variance.clamp_min(MIN_VARIANCE)
        return _likelihoods(outputs[:, : self.classes], spread).float(), variance.float()

    def _probabilities(self, outputs: Tensor) -> Tensor:
        p = (
            torch.softmax(outputs, 1)
            if self.loss == "cross-entropy"
            else _project_to_simplex(outputs)
        )
        p = p[:, : self.classes]
        return (p / p.sum(1, keepdim=True).clamp_min(1e-30)).float()


def _likelihoods(mean: Tensor, variance: Tensor) -> Tensor:
    """Do the same as `labelahead.gp.calibration.gaussian_class_probabilities` in operations that ONNX
    supports.
    """
    nodes, weights = gauss_hermite(mean.device)
    classes = mean.shape[1]
    if classes <= MAX_CLASSES_BY_QUADRATURE:
        ahead = (mean[:, :, None] - mean[:, None, :]) / variance.sqrt()[:, None, None]
        below = _normal_cdf(ahead[..., None] + nodes)  # (n, C, C, nodes): whether a is above c
        own = torch.eye(classes, dtype=torch.bool, device=mean.device)[:, :, None]
        p = torch.where(own, 1.0, below).prod(2) @ weights
        return p / p.sum(1, keepdim=True)
    first = mean.argmax(1, keepdim=True)
    own = torch.arange(classes, device=mean.device)[None] == first
    behind = mean - mean.gather(1, first)
    below = _normal_cdf(nodes - behind[..., None] / variance.sqrt()[:, None, None])
    top = torch.where(own[..., None], 1.0, below).prod(1) @ weights
    others = torch.where(own, 0.0, _normal_cdf(behind / (2 * variance)[:, None].sqrt()))
    share = others / others.sum(1, keepdim=True).clamp_min(1e-300) * (1 - top)[:, None]
    p = torch.where(own, top[:, None], torch.minimum(share, top[:, None]))
    return p / p.sum(1, keepdim=True)


def _normal_cdf(z: Tensor) -> Tensor:
    return (1 + torch.erf((z / 2**0.5).float()).double()) / 2  # onnxruntime has no other erf


def _project_to_simplex(z: Tensor) -> Tensor:
    """Return the nearest point of the probability simplex, by sorting (Held, Wolfe & Crowder 1974)."""
    ordered = torch.sort(z, dim=1, descending=True).values
    excess = ordered.cumsum(1) - 1
    counts = torch.arange(1, z.shape[1] + 1, dtype=z.dtype)
    inside = (ordered - excess / counts > 0).sum(1, keepdim=True)
    tau = excess.gather(1, inside - 1) / inside.to(z.dtype)
    return (z - tau).clamp_min(0.0)


def write_onnx(
    graph: ExportGraph, example: Tensor, ours: tuple[Tensor | None, ...], path: Path
) -> dict[str, Any]:
    """Write the graph, and compare the predictions of onnxruntime for an example (n, *shape) with
    ours.

    Returns:
        The opset, the shapes and the largest difference.
    """
    onnxruntime = import_extra("onnxruntime", "onnx", "the form ONNX")
    import_extra("onnxscript", "onnx", "the form ONNX")
    graph = graph.eval()
    names = ["probabilities"] if graph.spread is None else ["probabilities", "variance"]
    with torch.no_grad(), _silence_exporter():
        try:
            torch.onnx.export(
                graph,
                (example,),
                str(path),
                input_names=["items"],
                output_names=names,
                dynamic_shapes={"x": {0: torch.export.Dim("n")}},
                opset_version=OPSET,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        except Exception as error:  # the exporter raises many types
            cause = (str(error).strip().splitlines() or [""])[0]
            raise ModelError(
                f"the network cannot be written as ONNX ({type(error).__name__}: {cause}); leave "
                "ONNX out"
            ) from error
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    apart = 0.0
    for some in (example, example[:1]):  # the number of items is dynamic
        theirs = session.run(None, {"items": some.numpy()})
        for said, wanted in zip(theirs, [t for t in ours if t is not None], strict=True):
            apart = max(apart, float((torch.from_numpy(said) - wanted[: len(some)]).abs().max()))
    if not apart <= TOLERANCE:
        raise LabelaheadError(
            f"onnxruntime differs from our own predictions by {apart:.2g}; expected {TOLERANCE:g}"
        )
    return {"opset": OPSET, "input": ["n", *example.shape[1:]], "outputs": names, "apart": apart}


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """Suppress the log messages of the exporter."""
    loggers = [
        logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")
    ]
    before = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)
