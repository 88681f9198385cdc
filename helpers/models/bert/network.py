"""The layers of BERT for question answering, under the names of its public checkpoints.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", section 3 and appendix A;
the activation is the tanh approximation of GELU (Hendrycks and Gimpel, 2016).
"""

from torch import Tensor, nn

from helpers.models.bert.sizes import POSITIONS, SIZES

MASKED = -10000.0  # added to the scores of padding, as in the published code; fits into fp16


class QuestionAnswering(nn.Module):  # type: ignore[misc, unused-ignore]
    """Token ids, segment ids and input mask, int32 [batch, tokens] each, to the logits of the
    answer's start and end, each [batch, tokens].
    """

    def __init__(self, variant: str, *, basic_operators: bool = False) -> None:
        """Build it by PyTorch 2's attention and GELU, or by `basic_operators` of every release."""
        from transformers import BertConfig, BertModel

        super().__init__()
        size = SIZES[variant]
        config = BertConfig(
            vocab_size=size.rows,
            hidden_size=size.hidden,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            intermediate_size=4 * size.hidden,
            hidden_act="gelu_new" if basic_operators else "gelu_pytorch_tanh",
            max_position_embeddings=POSITIONS,
            type_vocab_size=2,
            layer_norm_eps=1e-12,
            attn_implementation="eager" if basic_operators else "sdpa",
        )
        self.bert = BertModel(config, add_pooling_layer=False)
        self.bert.loss_type = "ForQuestionAnswering"  # else the library warns while it is traced
        self.qa_outputs = nn.Linear(size.hidden, 2)

    def forward(self, ids: Tensor, segments: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        weight = self.qa_outputs.weight
        padding = (1 - mask[:, None, None, :].to(weight.dtype)) * MASKED
        hidden = self.bert(
            ids.long(), attention_mask=padding, token_type_ids=segments.long()
        ).last_hidden_state
        logits = self.qa_outputs(hidden)
        return logits[..., 0], logits[..., 1]
