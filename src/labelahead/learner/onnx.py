"""An exported model as one module, from items to probabilities, and as ONNX."""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labelahead.data.class_names import ClassNameGuesser
from labelahead.data.preprocessing import PICTURE_INPUTS, Preprocessor
from labelahead.errors import InputError, LabelaheadError, ModelError, import_extra
from labelahead.gp.calibration import MAX_CLASSES_BY_QUADRATURE, gauss_hermite
from labelahead.inference.exact_model import MIN_VARIANCE, ExactModel, find_kernel_model
from labelahead.inference.mixture import mix_kernels
from labelahead.models.encoders import Encoder
from labelahead.models.image_encoder import BACKBONES, load_backbone, scale_pixels
from labelahead.tasks import (
    Multilabel,
    MultilabelPrediction,
    Number,
    NumberPrediction,
    Rating,
    RatingPrediction,
    Task,
    TaskState,
)
from labelahead.tasks.rating import LAPSE

__all__ = [
    "EncoderGraph",
    "ExportGraph",
    "PreprocessingModule",
    "TaskHead",
    "list_task_outputs",
    "write_onnx",
]

ONNX_OPSET = 18
# Largest differences from our own predictions. Next to a labelled item the arc-cosine kernels change
# with the angle √(2(1 − cosine)): the rounding 2⁻²³ of a cosine moves a variance by up to √(2·2⁻²³).
TOLERANCES = {"probabilities": 1e-4, "variance": 5e-4}
ITEMS_INPUT = "items"  # the input of a graph without an encoder by name


class PreprocessingModule(nn.Module):
    """Convert items as they were read to inputs of the network."""

    mean: Tensor
    std: Tensor
    names_embeddings: Tensor
    names_mean: Tensor
    names_deviation: Tensor

    def __init__(self, preprocessor: Preprocessor) -> None:
        super().__init__()
        backbone = preprocessor.features if preprocessor.kind == PICTURE_INPUTS else None
        if backbone is not None and backbone not in BACKBONES:
            raise InputError(
                f"the model uses image features by {preprocessor.features!r}, which this version "
                f"of labelahead does not know; expected one of {', '.join(BACKBONES)}"
            )
        self.trunk = None if backbone is None else load_backbone(backbone)
        whole = preprocessor.features is not None or preprocessor.mean.numel() == 1
        column = preprocessor.mean.shape if whole else (-1, *[1] * (len(preprocessor.shape) - 1))
        self.register_buffer("mean", preprocessor.mean.view(column))
        self.register_buffer("std", preprocessor.std.view(column))
        self.guess_width = preprocessor.guess_width
        self.has_class_names = preprocessor.class_names is not None
        if preprocessor.class_names is not None:
            for key, tensor in asdict(preprocessor.class_names).items():
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


class TaskHead(nn.Module):
    """Posterior means (n, D) and variances (n,) -> what a task predicts, in operations of ONNX.

    Several classes at once and ratings: probabilities (n, C). Numbers: means and the ends of 90 %
    intervals, (n, D) each.
    """

    scale: Tensor  # (D,) square root of the scale of variances
    fitted: Tensor  # parameters of the task: see `TaskState`

    def __init__(self, task: Task, state: TaskState) -> None:
        super().__init__()
        self.task = task
        self.noise = state.noise
        self.lapse = 2 / (state.labels + 2)
        self.register_buffer("scale", state.variance_scale.sqrt())
        self.register_buffer("fitted", state.parameters)
        self.reach = 0.0
        if isinstance(task, Number):
            zeros = torch.zeros((1, len(task.outputs)), dtype=torch.float64)
            known = task.predict(zeros, zeros[:, 0], state)
            unit = NumberPrediction(task.outputs, zeros, zeros + 1, known.degrees)
            self.reach = float(unit.interval()[1][0, 0])

    @property
    def names(self) -> list[str]:
        """Names of the outputs."""
        return ["mean", "low", "high"] if isinstance(self.task, Number) else ["probabilities"]

    @property
    def tolerance(self) -> float:
        """Largest difference of numbers from our own predictions, in their unit."""
        return 1e-3 * float(self.scale.max()) * max(1.0, self.reach)

    def forward(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        """Return the predictions, float64."""
        spread = (variance + self.noise).sqrt()[:, None]
        if isinstance(self.task, Number):
            return self._bound(mean, self.reach * spread * self.scale)
        if isinstance(self.task, Multilabel):
            centre, base, _ = self.fitted.chunk(3)
            p = _normal_cdf((mean - centre) / (self.scale * spread))
            return ((1 - self.lapse) * p + self.lapse * base,)
        assert isinstance(self.task, Rating)
        below = _normal_cdf((self.fitted - mean) / (self.scale * spread))
        ends = torch.zeros_like(mean)
        p = torch.cat([below, ends + 1], 1) - torch.cat([ends, below], 1)
        return ((1 - LAPSE) * p.clamp_min(0.0) + LAPSE / p.shape[1],)

    def _bound(self, mean: Tensor, reach: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return means and ends of intervals within the limits of the numbers."""
        assert isinstance(self.task, Number)
        low, high = (x if isfinite(x) else None for x in self.task.limits)
        if low is None and high is None:
            return mean, mean - reach, mean + reach
        middle = mean.clamp(low, high)
        return middle, (middle - reach).clamp(low, high), (middle + reach).clamp(low, high)


def list_task_outputs(
    task: Task, model: ExactModel, mean: Tensor, variance: Tensor
) -> tuple[Tensor, ...]:
    """Return what `TaskHead` should compute, by the task itself."""
    prediction = task.predict(mean, variance, model.get_task_state())
    if isinstance(prediction, NumberPrediction):
        return prediction.mean, *prediction.interval()
    assert isinstance(prediction, MultilabelPrediction | RatingPrediction)
    return (prediction.probabilities,)


class ExportGraph(nn.Module):
    """Items as they were read (n, *shape) -> probabilities (n, C), and variances (n,) of the exact
    learner. For another task than classes: the outputs of `TaskHead`, and variances.

    It repeats `ExportedModel.outputs` without data-dependent control flow; `write_onnx` compares
    the two.
    """

    def __init__(
        self, preprocessing: PreprocessingModule | None, network: nn.Module, loss: str, classes: int
    ) -> None:
        super().__init__()
        self.preprocessing = preprocessing
        self.network = network
        self.loss = loss
        self.classes = classes
        self.spread: VarianceModule | None = None
        self.head: TaskHead | None = None
        kernel_model = find_kernel_model(network)
        if kernel_model is None:
            return
        self.spread = VarianceModule(kernel_model)
        if kernel_model.task is None:
            self.factor = kernel_model.ensure_variance_scale()
        else:
            self.head = TaskHead(kernel_model.task, kernel_model.get_task_state())

    @property
    def names(self) -> list[str]:
        """Names of the outputs."""
        first = ["probabilities"] if self.head is None else self.head.names
        return first if self.spread is None else [*first, "variance"]

    def get_tolerance(self, output: str) -> float:
        """Return the largest difference of an output from our own predictions."""
        if output not in TOLERANCES and self.head is not None:
            return self.head.tolerance
        return TOLERANCES[output]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return both as float32."""
        x = x if self.preprocessing is None else self.preprocessing(x)
        if self.spread is None:
            return (self._probabilities(self.network(x)),)
        model = self.network
        assert isinstance(model, ExactModel)
        units = model.normalise_rows(x)
        K = self.spread.kernel(model.take_features(units))
        outputs, variance = model.prior_mean(units) + K.double() @ model.alpha, self.spread(K)
        if self.head is not None:
            return *(out.float() for out in self.head(outputs, variance)), variance.float()
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


class EncoderGraph(nn.Module):
    """A pretrained encoder, then an `ExportGraph` of its embeddings.

    Its inputs are what the encoder's processor or tokenizer makes of the items.

    Args:
        encoder: The encoder, on the CPU.
        graph: Embeddings -> probabilities.
        inputs: Names of the prepared inputs, in order.
    """

    def __init__(self, encoder: Encoder, graph: ExportGraph, inputs: list[str]) -> None:
        super().__init__()
        self.model = getattr(encoder.backend, "model", None)  # its weights belong to the graph
        if not isinstance(self.model, nn.Module):
            raise ModelError(f"the encoder {encoder.name} is no torch module")
        self.backend = encoder.backend
        self.learner = graph  # a submodule called graph would hide that of torch.fx
        self.inputs = inputs

    @property
    def names(self) -> list[str]:
        """Names of the outputs."""
        return self.learner.names

    def get_tolerance(self, output: str) -> float:
        """Return the largest difference of an output from our own predictions."""
        return self.learner.get_tolerance(output)

    def forward(self, *prepared: Tensor) -> tuple[Tensor, ...]:
        """Return probabilities (n, C), and variances (n,) of the exact learner."""
        features = self.backend.encode(dict(zip(self.inputs, prepared, strict=True)))
        out: tuple[Tensor, ...] = self.learner(features.float())
        return out


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
    graph: ExportGraph | EncoderGraph,
    example: Tensor | Mapping[str, Tensor],
    expected: tuple[Tensor | None, ...],
    path: Path,
) -> dict[str, Any]:
    """Write the graph, and compare the predictions of onnxruntime for an example with ours.

    Args:
        graph: Items, or what an encoder takes, -> predictions.
        example: (n, *shape), or one tensor for each input of the encoder.
        ours: Our predictions for the example.
        path: Where to write.

    Returns:
        The opset, the shapes and the largest difference.
    """
    onnxruntime = import_extra("onnxruntime", "onnx", "the form ONNX")
    import_extra("onnxscript", "onnx", "the form ONNX")
    graph = graph.eval()
    given = {ITEMS_INPUT: example} if isinstance(example, Tensor) else dict(example)
    shapes = {name: _name_dimensions(name, tensor) for name, tensor in given.items()}
    dimensions = {word: torch.export.Dim(word) for word in ("n", "tokens")}
    dynamic = [
        {i: dimensions[d] for i, d in enumerate(s) if d in dimensions} for s in shapes.values()
    ]
    names = graph.names
    with torch.no_grad(), _silence_exporter():
        try:
            torch.onnx.export(
                graph,
                tuple(given.values()),
                str(path),
                input_names=list(given),
                output_names=names,
                dynamic_shapes={"prepared": tuple(dynamic)}
                if isinstance(graph, EncoderGraph)
                else {"x": dynamic[0]},
                opset_version=ONNX_OPSET,
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
    difference = _measure_difference(session, given, expected, graph.get_tolerance)
    about: dict[str, Any] = {"opset": ONNX_OPSET, "outputs": names, "apart": difference}
    if isinstance(graph, EncoderGraph):
        return about | {"inputs": shapes}
    return about | {"input": shapes[ITEMS_INPUT]}


def _measure_difference(
    session: Any,
    given: Mapping[str, Tensor],
    expected: tuple[Tensor | None, ...],
    get_tolerance: Callable[[str], float],
) -> float:
    """Return the largest difference between the outputs of onnxruntime and ours.

    Raises:
        LabelaheadError: It is larger than the tolerance of the output.
    """
    largest = 0.0
    wanted = [one for one in expected if one is not None]
    for count in (None, 1):  # the number of items is dynamic
        computed = session.run(None, {name: one[:count].numpy() for name, one in given.items()})
        for output, got, ours in zip(session.get_outputs(), computed, wanted, strict=True):
            difference = float((torch.from_numpy(got) - ours[: len(got)]).abs().max())
            tolerance = get_tolerance(output.name)
            if not difference <= tolerance:
                raise LabelaheadError(
                    f"the {output.name} by onnxruntime differ from our own by {difference:.2g}; "
                    f"expected at most {tolerance:g}"
                )
            largest = max(largest, difference)
    return largest


def _name_dimensions(name: str, example: Tensor) -> list[str | int]:
    """Return the shape of an input with names for what varies: items, and tokens of texts."""
    tokens = name != ITEMS_INPUT and example.dim() == 2 and not example.is_floating_point()
    return ["n", *(["tokens"] if tokens else example.shape[1:])]


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
