"""Networks that others wrote, at small size: name -> () -> (model in eval mode, input), seeded by
`make`.

Hugging Face's, timm's, torchvision's and some more, for `make test-zoo` and the kernel benchmark.
Weights are random: nothing is downloaded.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, Any]

# One size for all; every configuration takes the words that it knows.
TEXT = {
    "vocab_size": 60,
    "num_labels": 3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
    **dict.fromkeys(
        (
            "hidden_size",
            "n_embd",
            "dim",
            "d_model",
            "embedding_size",
            "emb_dim",
            "word_embed_proj_dim",
        ),
        32,
    ),
    **dict.fromkeys(
        (
            "num_hidden_layers",
            "n_layer",
            "n_layers",
            "num_layers",
            "encoder_layers",
            "decoder_layers",
        ),
        2,
    ),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(
        ("encoder_attention_heads", "decoder_attention_heads", "num_key_value_heads"), 4
    ),
    **dict.fromkeys(
        (
            "intermediate_size",
            "hidden_dim",
            "d_ff",
            "ffn_dim",
            "encoder_ffn_dim",
            "decoder_ffn_dim",
        ),
        48,
    ),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"), 40),
    "head_dim": 8,
    "d_kv": 8,
    "rotary_dim": 4,
}
IMAGE = {
    "image_size": 32,
    "patch_size": 8,
    "num_channels": 3,
    "num_labels": 3,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}


class Logits(nn.Module):
    """A Hugging Face network on token ids or pixels.

    Its logits, or the mean of its last states through a head.
    """

    def __init__(self, model: nn.Module, word: str, width: int = 0) -> None:
        super().__init__()
        self.model, self.word = model, word
        self.head = nn.Linear(width, 3) if width else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.model(**{self.word: x})
        if self.head is None:
            return out.logits
        return self.head(
            out.last_hidden_state.flatten(2).mean(2 if out.last_hidden_state.ndim > 3 else 1)
        )


def _make_config(name: str, words: dict[str, Any]) -> Any:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[name](**{k: v for k, v in words.items() if v is not None})


def text(name: str, *, tokens: int = 10, **words: Any) -> Callable[[], Made]:
    """A Hugging Face text classifier."""

    def make() -> Made:
        from transformers import AutoModelForSequenceClassification

        model = AutoModelForSequenceClassification.from_config(_make_config(name, TEXT | words))
        ids = torch.randint(3, 60, (5, tokens))
        ids[:, -1] = 2
        return Logits(model, "input_ids"), ids

    return make


def encoder(name: str, *, tokens: int = 10, width: int = 32, **words: Any) -> Callable[[], Made]:
    """A Hugging Face text network without a head of its own."""

    def make() -> Made:
        from transformers import AutoModel, T5EncoderModel

        config = _make_config(name, TEXT | words)
        model = T5EncoderModel(config) if name == "t5" else AutoModel.from_config(config)
        return Logits(model, "input_ids", width), torch.randint(3, 60, (5, tokens))

    return make


def image(name: str, *, size: int = 32, head: int = 0, **words: Any) -> Callable[[], Made]:
    """A Hugging Face image classifier; `head`: one of ours, on states of that width."""

    def make() -> Made:
        from transformers import AutoModel, AutoModelForImageClassification

        config = _make_config(name, IMAGE | {"image_size": size} | words)
        kind = AutoModel if head else AutoModelForImageClassification
        return Logits(kind.from_config(config), "pixel_values", head), torch.randn(5, 3, size, size)

    return make


def sound(name: str, *, length: int = 500, **words: Any) -> Callable[[], Made]:
    """A Hugging Face audio classifier, on the waveform."""

    def make() -> Made:
        from transformers import AutoModelForAudioClassification

        shape = {
            "conv_dim": (8, 8),
            "conv_stride": (5, 3),
            "conv_kernel": (6, 3),
            "num_feat_extract_layers": 2,
        }
        pos = {
            "num_conv_pos_embeddings": 8,
            "num_conv_pos_embedding_groups": 2,
            "classifier_proj_size": 16,
        }
        config = _make_config(name, TEXT | shape | pos | words)
        return Logits(
            AutoModelForAudioClassification.from_config(config), "input_values"
        ), torch.randn(5, length)

    return make


def timm(name: str, size: int = 64, **words: Any) -> Callable[[], Made]:
    """One of timm's."""

    def make() -> Made:
        import timm as library

        return library.create_model(name, num_classes=3, **words), torch.randn(5, 3, size, size)

    return make


def mixer(block: str) -> Callable[[], Made]:
    """timm's networks of perceptrons alone."""

    def make() -> Made:
        from timm.models import mlp_mixer

        layer = getattr(mlp_mixer, block)
        model = mlp_mixer.MlpMixer(
            3, 32, patch_size=8, num_blocks=2, embed_dim=32, block_layer=layer
        )
        return model, torch.randn(5, 3, 32, 32)

    return make


def vision(name: str, size: int = 64, **words: Any) -> Callable[[], Made]:
    """One of torchvision's."""

    def make() -> Made:
        import torchvision.models

        model = getattr(torchvision.models, name)(num_classes=3, **words)
        return model, torch.randn(5, 3, size, size)

    return make


_OPERATORS: list[torch.library.Library] = []


def with_torchvision_names() -> None:
    """PyPI's torchvision is built against another torch than the CPU build: it lacks its operators,
    which no classifier uses, and dies on import unless they have names."""
    if not _OPERATORS:
        library = torch.library.Library("torchvision", "DEF")
        names = ["nms", "qnms", "deform_conv2d", "_deform_conv2d_backward", "qroi_align"]
        names += [
            f"{a}{kind}{b}"
            for kind in ("roi_align", "roi_pool")
            for a, b in (("", ""), ("_", "_backward"))
        ]
        names += [
            f"{a}ps_{kind}{b}"
            for kind in ("roi_align", "roi_pool")
            for a, b in (("", ""), ("_", "_backward"))
        ]
        for operator in names:
            library.define(f"{operator}(Tensor x) -> Tensor")
        _OPERATORS.append(library)


def cv(name: str, size: int = 224, **words: Any) -> Callable[[], Made]:
    """One of pytorchcv's."""

    def make() -> Made:
        from pytorchcv.model_provider import get_model

        return get_model(name, num_classes=3, **words), torch.randn(5, 3, size, size)

    return make


def clip(name: str, **words: Any) -> Callable[[], Made]:
    """The image half of one of open_clip's."""

    def make() -> Made:
        from open_clip.transformer import VisionTransformer

        model = VisionTransformer(32, 8, 32, 2, 4, 2.0, output_dim=3, **words)
        return model, torch.randn(5, 3, 32, 32)

    return make


def lora(**words: Any) -> Callable[[], Made]:
    """PEFT's adapters on BERT, whose own weights are frozen."""

    def make() -> Made:
        from peft import LoraConfig, get_peft_model

        model, ids = text("bert")()
        config = LoraConfig(
            r=2,
            lora_dropout=0.0,
            init_lora_weights=False,
            target_modules=["query", "value"],
            **words,
        )
        return get_peft_model(model, config), ids

    return make


def x_transformer(**words: Any) -> Callable[[], Made]:
    """lucidrains' encoder."""

    def make() -> Made:
        from x_transformers import Encoder, TransformerWrapper

        class Pooled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                layers = Encoder(dim=32, depth=2, heads=4, attn_dim_head=8, **words)
                self.net = TransformerWrapper(num_tokens=60, max_seq_len=16, attn_layers=layers)
                self.head = nn.Linear(32, 3)

            def forward(self, ids: Tensor) -> Tensor:
                return self.head(self.net(ids, return_embeddings=True).mean(1))

        return Pooled(), torch.randint(0, 60, (5, 10))

    return make


def mamba(**words: Any) -> Callable[[], Made]:
    """mambapy's selective state spaces."""

    def make() -> Made:
        from mambapy.mamba import Mamba, MambaConfig

        class Pooled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embed, self.net = (
                    nn.Linear(6, 16),
                    Mamba(MambaConfig(d_model=16, n_layers=2, **words)),
                )
                self.head = nn.Linear(16, 3)

            def forward(self, x: Tensor) -> Tensor:
                return self.head(self.net(self.embed(x)).mean(1))

        return Pooled(), torch.randn(5, 8, 6)

    return make


def recurrent(cell: type[nn.RNNBase], **words: Any) -> Callable[[], Made]:
    """torch's own recurrences."""

    def make() -> Made:
        class Last(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.cell = cell(6, 8, 2, batch_first=True, **words)
                self.head = nn.Linear(
                    words.get("proj_size") or 8 * (1 + words.get("bidirectional", False)), 3
                )

            def forward(self, x: Tensor) -> Tensor:
                return self.head(self.cell(x)[0][:, -1])

        return Last(), torch.randn(5, 7, 6)

    return make


STAGES = {
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [8, 16, 24, 32],
    "num_attention_heads": [1, 2, 2, 4],
}
ZOO: dict[str, Callable[[], Made]] = {
    # Hugging Face, text
    **{
        f"hf {name}": text(name)
        for name in [
            "albert",
            "bert",
            "bart",
            "big_bird",
            "biogpt",
            "bloom",
            "camembert",
            "convbert",
            "ctrl",
            "deberta",
            "deberta-v2",
            "distilbert",
            "electra",
            "ernie",
            "esm",
            "flaubert",
            "fnet",
            "gemma",
            "gemma2",
            "gpt2",
            "gpt_bigcode",
            "gpt_neox",
            "gptj",
            "helium",
            "ibert",
            "llama",
            "megatron-bert",
            "mistral",
            "mobilebert",
            "modernbert",
            "mpnet",
            "mpt",
            "nystromformer",
            "openai-gpt",
            "opt",
            "persimmon",
            "phi",
            "phi3",
            "qwen2",
            "qwen3",
            "rembert",
            "roberta",
            "roberta-prelayernorm",
            "roformer",
            "squeezebert",
            "stablelm",
            "starcoder2",
            "t5",
            "xlm-roberta",
            "yoso",
        ]
    },
    "hf xlnet": text("xlnet", max_position_embeddings=None, d_inner=48),
    "hf gpt_neo": text("gpt_neo", attention_types=[[["global", "local"], 1]]),
    "hf deberta relative": text("deberta", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "hf falcon": text("falcon", head_dim=None),
    "hf funnel": text(
        "funnel",
        num_hidden_layers=None,
        n_layer=None,
        n_layers=None,
        num_layers=None,
        block_sizes=[1, 1],
        d_head=8,
        d_inner=48,
    ),
    "hf longformer": text("longformer", attention_window=4, tokens=12),
    "hf t5 encoder": encoder("t5"),
    "hf mamba": encoder("mamba", state_size=4),
    "hf perceiver": text(
        "perceiver",
        d_latents=16,
        num_latents=4,
        num_blocks=1,
        num_self_attends_per_block=1,
        num_self_attention_heads=2,
        num_cross_attention_heads=2,
    ),
    # Hugging Face, images and sound
    **{
        f"hf {name}": image(name)
        for name in ["vit", "vit_msn", "dinov2", "ijepa", "data2vec-vision"]
    },
    "hf beit": image("beit", use_relative_position_bias=True, use_mean_pooling=True),
    "hf dinov2 registers": image("dinov2_with_registers"),
    **{
        f"hf {name}": image(
            name,
            patch_size=2,
            embed_dim=8,
            depths=[1, 2],
            num_heads=[1, 2],
            num_attention_heads=None,
            num_hidden_layers=None,
            hidden_size=None,
            window_size=4,
        )
        for name in ["swin", "swinv2"]
    },
    "hf focalnet": image(
        "focalnet",
        patch_size=2,
        embed_dim=8,
        depths=[1, 1],
        focal_levels=[1, 1],
        focal_windows=[3, 3],
        hidden_sizes=[8, 16],
    ),
    "hf convnext": image(
        "convnext", patch_size=4, depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32]
    ),
    "hf convnextv2": image(
        "convnextv2", patch_size=4, depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32]
    ),
    "hf resnet": image("resnet", embedding_size=8, depths=[1, 1], hidden_sizes=[16, 32]),
    "hf mobilenet_v1": image("mobilenet_v1", size=64, depth_multiplier=0.125, min_depth=8),
    "hf mobilenet_v2": image("mobilenet_v2", size=64, depth_multiplier=0.25, min_depth=8),
    "hf poolformer": image("poolformer", **STAGES),
    "hf segformer": image("segformer", **STAGES),
    "hf pvt": image("pvt", **STAGES),
    "hf pvt_v2": image("pvt_v2", **STAGES),
    "hf deit": image("deit", architectures=["DeiTForImageClassification"]),
    "hf levit": image(
        "levit",
        architectures=["LevitForImageClassification"],
        patch_size=16,
        size=64,
        hidden_sizes=[16, 24, 32],
        num_attention_heads=[2, 2, 2],
        depths=[1, 1, 1],
        key_dim=[4, 4, 4],
    ),
    "hf swiftformer": image(
        "swiftformer", size=64, depths=[1, 1, 1, 1], embed_dims=[8, 16, 24, 32]
    ),
    **{
        f"hf {name}": sound(name)
        for name in ["wav2vec2", "hubert", "unispeech", "sew", "data2vec-audio"]
    },
    # timm
    **{
        f"timm {name}": timm(name)
        for name in [
            "test_byobnet",
            "test_convnext",
            "test_convnext2",
            "test_convnext3",
            "test_nfnet",
            "test_resnet",
            "test_efficientnet",
            "test_efficientnet_gn",
            "test_efficientnet_ln",
            "test_efficientnet_evos",
            "test_mambaout",
            "lcnet_035",
            "mobilenetv3_small_050",
            "dla46x_c",
            "edgenext_xx_small",
            "efficientvit_b0",
            "fasternet_t0",
            "fastvit_t8",
            "ghostnet_050",
            "ghostnetv3_050",
            "repghostnet_050",
            "regnetx_002",
            "regnety_002",
            "starnet_s050",
            "mobilevit_xxs",
            "mobilevitv2_050",
            "cs3darknet_s",
            "ese_vovnet19b_slim_dw",
            "inception_next_atto",
            "iformer_t",
            "pvt_v2_b0",
            "rexnet_100",
            "lcnetv2_small",
            "tinynet_e",
            "mnasnet_small",
            "mobileone_s1",
            "tf_efficientnet_lite0",
            "resnet10t",
        ]
    },
    **{
        f"timm {name}": timm(name, 160)
        for name in ("test_vit", "test_vit2", "test_vit3", "test_vit4")
    },
    **{
        f"timm {name}": timm(name, 32, img_size=32, **words)
        for name, words in {
            "deit_tiny_patch16_224": {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4},
            "deit_tiny_distilled_patch16_224": {
                "patch_size": 8,
                "embed_dim": 32,
                "depth": 2,
                "num_heads": 4,
            },
            "beit_base_patch16_224": {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4},
            "cait_xxs24_224": {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4},
            "eva02_tiny_patch14_224": {
                "patch_size": 8,
                "embed_dim": 32,
                "depth": 2,
                "num_heads": 4,
            },
            "vit_relpos_small_patch16_224": {
                "patch_size": 8,
                "embed_dim": 32,
                "depth": 2,
                "num_heads": 4,
            },
            "xcit_nano_12_p16_224": {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4},
            "convit_tiny": {
                "patch_size": 8,
                "embed_dim": 32,
                "depth": 3,
                "num_heads": 4,
                "local_up_to_layer": 2,
            },
            "swin_tiny_patch4_window7_224": {
                "patch_size": 2,
                "embed_dim": 16,
                "depths": (2, 2),
                "num_heads": (2, 4),
                "window_size": 4,
            },
            "swinv2_tiny_window8_256": {
                "patch_size": 2,
                "embed_dim": 16,
                "depths": (2, 2),
                "num_heads": (2, 4),
                "window_size": 4,
            },
        }.items()
    },
    "timm mixer": mixer("MixerBlock"),
    # torchvision, pytorchcv, open_clip, peft, x-transformers, mambapy, torch
    "torchvision squeezenet1_1": vision("squeezenet1_1"),
    "torchvision shufflenet_v2_x0_5": vision("shufflenet_v2_x0_5"),
    "torchvision mobilenet_v3_small": vision("mobilenet_v3_small"),
    "torchvision mobilenet_v2": vision("mobilenet_v2", width_mult=0.25),
    "torchvision mnasnet0_5": vision("mnasnet0_5"),
    **{
        f"pytorchcv {name}": cv(name)
        for name in ("shufflenet_g1_wd4", "mobilenet_wd4", "menet108_8x1_g3")
    },
    "open_clip vit": clip("vit"),
    "open_clip vit, mean of tokens": clip("vit", pool_type="avg", final_ln_after_pool=True),
    "peft lora on bert": lora(),
    "peft dora on bert": lora(use_dora=True),
    "x-transformers": x_transformer(),
    "x-transformers rotary": x_transformer(rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True),
    "x-transformers alibi": x_transformer(alibi_pos_bias=True, attn_qk_norm=True),
    "x-transformers relative": x_transformer(rel_pos_bias=True),
    "mambapy": mamba(),
    "torch LSTM": recurrent(nn.LSTM),
    "torch LSTM, projected": recurrent(nn.LSTM, proj_size=4),
    "torch GRU, both ways": recurrent(nn.GRU, bidirectional=True),
    "torch RNN": recurrent(nn.RNN),
}


def make(name: str, seed: int = 0) -> Made:
    """A network of the zoo in float64 and its input.

    No statistics, scale or bias is left at a value of no effect.
    """
    torch.manual_seed(seed)
    with_torchvision_names()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, x = ZOO[name]()
    model, x = model.double().eval(), x.double() if x.is_floating_point() else x
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.02 * torch.randn_like(p))
        for module in model.modules():
            if (
                isinstance(module, nn.modules.batchnorm._BatchNorm)
                and module.running_mean is not None
            ):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
    return model, x
