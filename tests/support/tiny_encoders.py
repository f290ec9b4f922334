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
    """Save one tiny encoder of each family: vit, dinov2, bert, clip, wav2vec2, ast, whisper, clap."""
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
    _save_whisper(root / "whisper")
    _save_clap(root / "clap", text)
    return root


def _save_whisper(folder):
    t = transformers
    layers = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "vocab_size": 20}
    layers |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    t.WhisperModel(t.WhisperConfig(**layers, decoder_ffn_dim=64, **tokens)).save_pretrained(folder)
    t.WhisperFeatureExtractor().save_pretrained(folder)


def _save_clap(folder, text):
    t = transformers
    sound = {"num_mel_bins": 16, "spec_size": 64, "window_size": 4, "patch_embeds_hidden_size": 16}
    sound |= {"hidden_size": 64, "depths": [1, 1, 1], "num_attention_heads": [2, 2, 2]}
    text = {**text, "max_position_embeddings": 20}
    config = t.ClapConfig(text_config=text, audio_config=sound, projection_dim=24)
    t.ClapModel(config).save_pretrained(folder)
    t.ClapFeatureExtractor(
        feature_size=16, max_length_s=2, truncation="rand_trunc"
    ).save_pretrained(folder)
    _save_tokenizer(folder)


def _save_tokenizer(folder):
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    # Version 5 of transformers reads the vocabulary here; it ignores `vocab_file=`.
    tokenizer = transformers.BertTokenizerFast.from_pretrained(folder)
    assert set(WORDS) <= set(tokenizer.get_vocab())
    tokenizer.save_pretrained(folder)
