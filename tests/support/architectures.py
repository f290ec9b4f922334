"""Small networks of every kind with inputs: name -> () -> (model, x). The caller seeds them."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations


class Made(nn.Module):
    """A network from a function and its parts."""

    def __init__(self, forward, **parts):
        super().__init__()
        self.run = forward
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, torch.Tensor) else part)

    def forward(self, *x):
        return self.run(self, *x)


def _with_batch_statistics(model, shape):
    """Give BatchNorm layers non-trivial statistics and weights."""
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(16, *shape) * 2 + 1)
    for m in model.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(m.weight, 0.5, 1.5)
            nn.init.normal_(m.bias)
    return model.eval()


def mlp():
    return nn.Sequential(
        nn.Linear(5, 8),
        nn.ReLU(inplace=True),
        nn.Linear(8, 7, bias=False),
        nn.Tanh(),
        nn.Linear(7, 3),
    ), torch.randn(9, 5)


def cnn_bn():
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, 3),
    )
    return _with_batch_statistics(net, (2, 8, 8)), torch.randn(7, 2, 8, 8)


class Residual(nn.Module):
    def __init__(self, c_in, c_out, stride=1, pre=False):
        super().__init__()
        self.pre = pre
        self.bn1 = nn.BatchNorm2d(c_in if pre else c_out)
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(c_in, c_out, 1, stride, bias=False)

    def forward(self, x):
        if self.pre:
            h = F.relu(self.bn1(x))
            return self.conv2(F.relu(self.bn2(self.conv1(h)))) + self.short(h)
        h = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(h)) + self.short(x), inplace=True)


def resnet():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False),
        Residual(4, 4),
        Residual(4, 8, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    return _with_batch_statistics(net, (3, 8, 8)), torch.randn(6, 3, 8, 8)


def wide_resnet():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False),
        Residual(4, 12, pre=True),
        Residual(12, 12, pre=True),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 3),
    )
    return _with_batch_statistics(net, (3, 6, 6)), torch.randn(6, 3, 6, 6)


def vgg():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 10),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(10, 3),
    ).eval(), torch.randn(7, 3, 8, 8)


def odd_convolutions():
    return nn.Sequential(
        nn.Conv2d(4, 6, (3, 2), (2, 1), padding=(1, 2), dilation=(1, 2), groups=2),
        nn.GELU(),
        nn.Conv2d(6, 8, 3, padding=1, padding_mode="reflect"),
        nn.GELU(),
        nn.Conv2d(8, 8, 3, padding="same", padding_mode="circular", groups=8),
        nn.GELU(),
        nn.Conv2d(8, 4, 2, padding="same", bias=False),
        nn.Flatten(),
        nn.LazyLinear(3),
    ), torch.randn(6, 4, 7, 6)


def few_positions():
    """Many channels on a tiny image: contracted through pairs of pixels."""
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(24, 24, 3, stride=2, padding=1, dilation=1),
        nn.Tanh(),
        nn.Conv2d(24, 24, 3, padding=2, dilation=2),
        nn.Flatten(),
        nn.Linear(96, 3),
    ), torch.randn(12, 3, 6, 5)


def conv1d():
    return nn.Sequential(
        nn.Conv1d(2, 5, 3, padding="same", dilation=2),
        nn.InstanceNorm1d(5, affine=True),
        nn.ReLU(),
        nn.Conv1d(5, 4, 2, stride=2, padding_mode="replicate", padding=1),
        nn.Flatten(),
        nn.LazyLinear(3),
    ), torch.randn(6, 2, 9)


def conv3d():
    return nn.Sequential(
        nn.Conv3d(2, 4, 3, padding=1, stride=2),
        nn.SiLU(),
        nn.Conv3d(4, 4, (1, 2, 2)),
        nn.Flatten(),
        nn.LazyLinear(2),
    ), torch.randn(5, 2, 4, 5, 4)


class Transformer(nn.Module):
    def __init__(self, batch_first=True, tokens=4):
        super().__init__()
        self.batch_first = batch_first
        self.embed = nn.Linear(6, 8)
        self.cls = nn.Parameter(torch.randn(1, 1, 8))
        self.position = nn.Parameter(torch.randn(tokens + 1, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 12, activation="gelu", batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = torch.cat([self.cls.expand(len(x), -1, -1), self.embed(x)], 1) + self.position
        if self.batch_first:
            return self.head(self.encoder(h)[:, 0])
        return self.head(self.encoder(h.transpose(0, 1))[0])


def transformer():
    return Transformer().eval(), torch.randn(6, 4, 6)


def transformer_tokens_first():
    return Transformer(batch_first=False).eval(), torch.randn(6, 4, 6)


class CrossAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Parameter(torch.randn(2, 1, 8))
        self.attend = nn.MultiheadAttention(8, 2, kdim=5, vdim=5, bias=True, add_bias_kv=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        memory = x.transpose(0, 1)
        h, _ = self.attend(self.query.expand(-1, len(x), -1), memory, memory)
        return self.head(h.transpose(0, 1).flatten(1))


def cross_attention():
    return CrossAttention().eval(), torch.randn(5, 3, 5)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4, padding_idx=0)
        self.mix = nn.Linear(4, 4)

    def forward(self, tokens):
        h = torch.tanh(self.mix(self.embed(tokens))).mean(1)
        return F.linear(h, self.embed.weight)


def tied_embedding():
    return Tied(), torch.randint(0, 7, (8, 5))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.linear = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(18, 2)

    def forward(self, x):
        h = torch.tanh(self.conv(x))
        h = self.conv(F.avg_pool2d(h, 2))
        h = h.flatten(2)[:, :, :6]
        for _ in range(3):
            h = self.norm(torch.tanh(self.linear(h)))
        return self.head(h.flatten(1))


def module_called_twice():
    return Twice(), torch.randn(6, 3, 6, 6)


class Recurrent(nn.Module):
    def __init__(self, cell, **options):
        super().__init__()
        self.cell = cell(4, 5, 2, **options)
        self.head = nn.Linear(5 * (2 if options.get("bidirectional") else 1), 3)
        self.batch_first = options.get("batch_first", False)

    def forward(self, x):
        out, _ = self.cell(x if self.batch_first else x.transpose(0, 1))
        return self.head(out[:, -1] if self.batch_first else out[-1])


def lstm():
    return Recurrent(nn.LSTM, batch_first=True).eval(), torch.randn(7, 4, 4)


def gru_both_ways():
    return Recurrent(nn.GRU, bidirectional=True).eval(), torch.randn(7, 3, 4)


class Custom(nn.Module):
    """Parameters used directly: product, scale, bias, difference, power, outer, a shared scalar."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 6))
        self.scale = nn.Parameter(torch.rand(6) + 0.5)
        self.shift = nn.Parameter(torch.randn(1, 6))
        self.power = nn.Parameter(torch.rand(1) + 1)
        self.u = nn.Parameter(torch.randn(3))
        self.v = nn.Parameter(torch.randn(6))
        self.temperature = nn.Parameter(torch.tensor(0.7))
        self.unused = nn.Parameter(torch.randn(2))

    def forward(self, x):
        h = torch.tanh(x @ self.weight * self.scale - self.shift)
        h = (h.abs() + 0.1) ** self.power
        return h @ torch.outer(self.u, self.v).T * self.temperature + self.temperature


def custom_parameters():
    return Custom(), torch.randn(8, 5)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.group = nn.GroupNorm(3, 6)
        self.prelu = nn.PReLU(6)
        self.one = nn.PReLU()
        self.instance = nn.InstanceNorm2d(6, affine=True)
        self.layer = nn.LayerNorm([6, 3, 3])
        self.rms = nn.RMSNorm(9)
        self.linear = nn.Linear(9, 4)
        self.norm = nn.BatchNorm1d(24)
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        h = self.prelu(self.group(self.conv(x)))
        h = self.one(self.layer(self.instance(h)))
        h = self.linear(self.rms(h.flatten(2)))
        return self.head(self.norm(h.flatten(1)))


def norms():
    return _with_batch_statistics(Normed(), (3, 5, 5)), torch.randn(6, 3, 5, 5)


def frozen_layers():
    net, x = cnn_bn()
    net[0].weight.requires_grad_(False)
    net[4].bias.requires_grad_(False)
    net[5].requires_grad_(False)
    return net, x


def parametrized():
    return nn.Sequential(
        parametrizations.weight_norm(nn.Linear(5, 8)),
        nn.Tanh(),
        parametrizations.orthogonal(nn.Linear(8, 6)),
        nn.Tanh(),
        nn.Linear(6, 2),
    ).eval(), torch.randn(7, 5)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Bilinear(4, 3, 5)
        self.head = nn.Linear(5, 2)

    def forward(self, a, b):
        return self.head(torch.tanh(self.mix(a, b)))


def bilinear_two_inputs():
    return TwoInputs(), (torch.randn(7, 4), torch.randn(7, 3))


class VideoFrames(nn.Module):
    """Frames folded into the batch for the convolution, in either order."""

    def __init__(self, frames_first):
        super().__init__()
        self.frames_first = frames_first
        self.conv = nn.Conv2d(2, 4, 3)
        self.linear = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.rand(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        n, frames = x.shape[:2]
        h = x.transpose(0, 1) if self.frames_first else x
        h = torch.tanh(self.conv(h.reshape(n * frames, *x.shape[2:]))).mean((2, 3))
        h = torch.tanh(self.linear(h) * self.scale)
        shape = (frames, n, 4) if self.frames_first else (n, frames, 4)
        return self.head(h.view(shape).sum(0 if self.frames_first else 1))


def frames_after_samples():
    return VideoFrames(False), torch.randn(5, 3, 2, 5, 5)


def frames_before_samples():
    return VideoFrames(True), torch.randn(5, 3, 2, 5, 5)


def transposed_convolution():
    return nn.Sequential(
        nn.ConvTranspose2d(2, 3, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)
    ), torch.randn(5, 2, 3, 3)


def one_output():
    class Scalar(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))

        def forward(self, x):
            return self.net(x)[:, 0]

    return Scalar(), torch.randn(8, 5)


class MadeOfParameters(nn.Module):
    """Parameters that are transformed before they meet the samples.

    Tables of positions, packed and transposed weights, scales.
    """

    def __init__(self, d=8, tokens=6):
        super().__init__()
        self.tokens = nn.Embedding(11, d)
        self.positions = nn.Embedding(10, d)
        self.relative = nn.Embedding(5, 2)
        self.q_bias, self.v_bias = nn.Parameter(torch.randn(d)), nn.Parameter(torch.randn(d))
        self.packed = nn.Parameter(torch.randn(3 * d, d) / 3)
        self.turned = nn.Parameter(torch.randn(d, 2 * d) / 3)
        self.matrix = nn.Parameter(torch.randn(d, 2 * d, 1) / 3)
        self.scale = nn.Parameter(torch.rand(d) + 0.5)
        self.shift = nn.Parameter(torch.randn(2, 4))
        self.normed = parametrizations.weight_norm(nn.Linear(d, d))
        self.kernel = nn.Parameter(torch.randn(d * d, 3) / 3)
        self.head = nn.Linear(d, 3)

    def attended(self, h):
        n, T, d = h.shape
        w = self.packed.split(d)
        bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias]).chunk(3)
        q, k, v = (F.linear(h, w[i], bias[i]).view(n, T, 2, -1).transpose(1, 2) for i in range(3))
        at = torch.arange(T, device=h.device)
        far = (at[:, None] - at).clamp(-2, 2) + 2
        score = q @ k.mT / 2 + self.relative(far).permute(2, 0, 1)[None]
        return (score.softmax(-1) @ v).transpose(1, 2).reshape(n, T, d)

    def forward(self, ids):
        n, T = ids.shape
        h = self.tokens(ids) + self.positions(torch.arange(T, device=ids.device)[None])
        h = h + self.attended(h) * self.scale.view(1, 1, -1)
        h = torch.tanh(h @ self.turned) @ self.matrix.squeeze(-1).mT + self.shift.T.reshape(-1)
        h = h + F.conv1d(h.mT, self.kernel.view(8, 8, 3), padding=1).mT
        return self.head(
            torch.tanh(self.normed(h))[torch.arange(n, device=ids.device), (ids > 0).sum(1) - 1]
        )


def made_of_parameters():
    return MadeOfParameters(), torch.randint(1, 11, (7, 6))


class Windows(nn.Module):
    """As Swin: shifted windows, a table of relative positions, its entries shared by all windows."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 2, 2)
        self.table = nn.Parameter(torch.randn(9, 2))
        self.register_buffer("far", torch.randint(0, 9, (16,)))
        self.qkv, self.out, self.head = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 3)
        self.gamma = nn.Parameter(torch.rand(8, 1, 1))

    def forward(self, x):
        h = self.embed(x) * self.gamma
        n, d, side, _ = h.shape
        w = (
            h.permute(0, 2, 3, 1)
            .roll((-1, -1), (1, 2))
            .view(n, side // 2, 2, side // 2, 2, d)
            .transpose(2, 3)
        )
        w = w.reshape(-1, 4, d)
        q, k, v = self.qkv(w).view(len(w), 4, 3, 2, d // 2).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.far].view(4, 4, 2).permute(2, 0, 1).contiguous()
        w = ((q @ k.mT + bias.unsqueeze(0)).softmax(-1) @ v).transpose(1, 2).reshape(len(w), 4, d)
        return self.head(torch.tanh(self.out(w)).view(n, -1, d).mean(1))


def windows():
    return Windows(), torch.randn(6, 3, 8, 8)


ARCHITECTURES = {
    f.__name__: f
    for f in (
        mlp,
        cnn_bn,
        resnet,
        wide_resnet,
        vgg,
        odd_convolutions,
        few_positions,
        conv1d,
        conv3d,
        transformer,
        transformer_tokens_first,
        cross_attention,
        tied_embedding,
        module_called_twice,
        lstm,
        gru_both_ways,
        custom_parameters,
        norms,
        frozen_layers,
        parametrized,
        bilinear_two_inputs,
        frames_after_samples,
        frames_before_samples,
        transposed_convolution,
        one_output,
        made_of_parameters,
        windows,
    )
}


def make(name, seed=0):
    """Model in eval mode and input, in the default dtype."""
    torch.manual_seed(seed)
    model, x = ARCHITECTURES[name]()
    with torch.no_grad():
        model(*x) if isinstance(x, tuple) else model(x)  # initialises lazy layers
    return model.eval(), x
