"""Tiny encoders with random weights, saved by the libraries themselves."""

from pathlib import Path

import torch
import transformers

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "cat", "dog", "sat"]


def save_tiny_encoders(root: Path) -> Path:
    """Save one tiny encoder of each family: vit, dinov2, bert, clip, wav2vec2, ast."""
    torch.manual_seed(0)
    t = transformers
    t.ViTModel(t.ViTConfig(**SMALL, image_size=32, patch_size=8)).save_pretrained(root / "vit")
    size = {"height": 32, "width": 32}
    t.ViTImageProcessorPil(size=size).save_pretrained(root / "vit")
    config = t.Dinov2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14
    )
    t.Dinov2Model(config).save_pretrained(root / "dinov2")
    crop = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    t.BitImageProcessorPil(**crop).save_pretrained(root / "dinov2")
    t.BertModel(
        t.BertConfig(**SMALL, vocab_size=len(WORDS), max_position_embeddings=16)
    ).save_pretrained(root / "bert")
    _save_tokenizer(root / "bert")
    text = {**SMALL, "vocab_size": len(WORDS), "max_position_embeddings": 16}
    text |= {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    vision = {**SMALL, "image_size": 32, "patch_size": 8}
    clip = t.CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)
    t.CLIPModel(clip).save_pretrained(root / "clip")
    crop = {"size": {"shortest_edge": 32}, "crop_size": size}
    t.CLIPImageProcessorPil(**crop).save_pretrained(root / "clip")
    _save_tokenizer(root / "clip")
    sound = {"conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 8)}
    sound |= {"num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8}
    wav = t.Wav2Vec2Config(**SMALL, **sound, num_conv_pos_embedding_groups=2)
    t.Wav2Vec2Model(wav).save_pretrained(root / "wav2vec2")
    t.Wav2Vec2FeatureExtractor().save_pretrained(root / "wav2vec2")
    bins = {"num_mel_bins": 16, "max_length": 64}
    ast = t.ASTConfig(**SMALL, **bins, patch_size=8, frequency_stride=8, time_stride=8)
    t.ASTModel(ast).save_pretrained(root / "ast")
    t.ASTFeatureExtractor(**bins).save_pretrained(root / "ast")
    return root


def _save_tokenizer(folder):
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
