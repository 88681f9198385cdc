"""The layers of the Temporal Fusion Transformer, under the tensor names of NVIDIA's checkpoints.

Lim et al., "Temporal Fusion Transformers for Interpretable Multi-horizon Time Series Forecasting",
arXiv 1912.09363; its equations are named where they are computed. Layer norms have an epsilon of
1e-3 and a skip connection is projected where a width changes, both as NVIDIA trained it.
"""

from collections import OrderedDict
from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn

from helpers.models.tft.variants import HISTORY, LENGTH, QUANTILES

HIDDEN, HEADS, KNOWN = 128, 4, 3
HEAD = HIDDEN // HEADS
EPSILON = 1e-3


class Explanation(NamedTuple):
    """A forecast, and the weights that explain it."""

    forecast: Tensor  # [batch, 24, 3]
    history_weights: Tensor  # [batch, 168, 4]: of the three known inputs and the target
    future_weights: Tensor  # [batch, 24, 3]: of the three known inputs
    attention: Tensor  # [batch, 24, 192]: of each hour to come to every hour, mean of the heads


class Embedding(nn.Module):  # type: ignore[misc, unused-ignore]
    """Every scalar x becomes x * v + b, with a v and b for each variable; the series has a row."""

    def __init__(self, cardinality: int) -> None:
        super().__init__()
        self.history = HISTORY  # TorchScript knows a module's numbers, not those of a file
        self.t_cont_k_embedding_vectors = nn.Parameter(torch.empty(KNOWN, HIDDEN))
        self.t_cont_k_embedding_bias = nn.Parameter(torch.zeros(KNOWN, HIDDEN))
        self.t_tgt_embedding_vectors = nn.Parameter(torch.empty(1, HIDDEN))
        self.t_tgt_embedding_bias = nn.Parameter(torch.zeros(1, HIDDEN))
        self.s_cat_embed = nn.ModuleList([nn.Embedding(cardinality, HIDDEN)])
        nn.init.xavier_normal_(self.t_cont_k_embedding_vectors)
        nn.init.xavier_normal_(self.t_tgt_embedding_vectors)

    def forward(
        self, s_cat: Tensor, k_cont: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return [batch, 1, 128] of the series and [batch, hours, variables, 128] of the others."""
        static = self.s_cat_embed[0](s_cat[:, 0])
        known = k_cont.unsqueeze(-1) * self.t_cont_k_embedding_vectors
        known = known + self.t_cont_k_embedding_bias
        past = target[:, : self.history].unsqueeze(-1) * self.t_tgt_embedding_vectors
        return static, known, past + self.t_tgt_embedding_bias


class GLU(nn.Module):  # type: ignore[misc, unused-ignore]
    """Gated linear unit, equation 5: both halves come from one linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lin = nn.Linear(HIDDEN, width * 2)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.lin(x).chunk(2, dim=-1)
        out: Tensor = value * torch.sigmoid(gate)
        return out


class GRN(nn.Module):  # type: ignore[misc, unused-ignore]
    """Gated residual network, equations 2 to 4; a single output has no layer norm."""

    def __init__(
        self, inputs: int, out: int, *, context: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        norm = OrderedDict(ln=nn.LayerNorm(out, eps=EPSILON))  # `layer_norm.ln` in checkpoints
        self.layer_norm = nn.Sequential(norm) if out > 1 else nn.Identity()
        self.lin_a = nn.Linear(inputs, HIDDEN)
        self.lin_c = nn.Linear(HIDDEN, HIDDEN, bias=False) if context else None
        self.lin_i = nn.Linear(HIDDEN, HIDDEN)
        self.glu = GLU(out)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(inputs, out) if out != inputs else nn.Identity()

    def forward(self, a: Tensor, c: Optional[Tensor] = None) -> Tensor:  # noqa: UP045 - TorchScript
        """Transform `a`, [batch, ..., inputs], with the context `c` of all hours, [batch, 128]."""
        x = self.lin_a(a)
        if self.lin_c is not None and c is not None:
            x = x + self.lin_c(c).unsqueeze(1)
        x = self.dropout(self.lin_i(nn.functional.elu(x)))
        out: Tensor = self.layer_norm(self.glu(x) + self.out_proj(a))
        return out


class VSN(nn.Module):  # type: ignore[misc, unused-ignore]
    """Variable selection network, equations 6 to 8."""

    def __init__(self, variables: int, dropout: float) -> None:
        super().__init__()
        self.joint_grn = GRN(HIDDEN * variables, variables, context=True)
        self.var_grns = nn.ModuleList(
            GRN(HIDDEN, HIDDEN, dropout=dropout) for _ in range(variables)
        )

    def forward(
        self,
        x: Tensor,
        context: Optional[Tensor] = None,  # noqa: UP045 - TorchScript
    ) -> tuple[Tensor, Tensor]:
        """Turn [batch, ..., variables, 128] into [batch, ..., 128], and return the weights."""
        weights = torch.softmax(self.joint_grn(x.flatten(-2), context), dim=-1)
        selected = torch.zeros_like(x[..., 0, :])
        for index, grn in enumerate(self.var_grns):
            selected = selected + weights[..., index : index + 1] * grn(x[..., index, :])
        return selected, weights


class StaticEncoder(nn.Module):  # type: ignore[misc, unused-ignore]
    """Contexts of variable selection, enrichment, and the first state of the LSTM (section 4.3)."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.vsn = VSN(1, dropout)
        self.context_grns = nn.ModuleList(GRN(HIDDEN, HIDDEN, dropout=dropout) for _ in range(4))

    def forward(self, x: Tensor) -> list[Tensor]:
        selected = self.vsn(x)[0]
        return [grn(selected) for grn in self.context_grns]


class Attention(nn.Module):  # type: ignore[misc, unused-ignore]
    """Interpretable multi-head attention, equations 13 to 16: the heads share their values.

    Only the hours to come have queries, because the network uses no other outputs.
    """

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.history, self.heads, self.head = HISTORY, HEADS, HEAD
        later = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
        self.register_buffer("_mask", later.unsqueeze(0))
        self.qkv_linears = nn.Linear(HIDDEN, (2 * HEADS + 1) * HEAD, bias=False)
        self.out_proj = nn.Linear(HEAD, HIDDEN, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Turn [batch, 192, 128] into [batch, 24, 128], and return the heads' mean attention."""
        width = self.heads * self.head
        q, k, v = self.qkv_linears(x).split([width, width, self.head], dim=-1)
        q = q[:, self.history :].unflatten(-1, [self.heads, self.head]).permute(0, 2, 1, 3)
        k = k.unflatten(-1, [self.heads, self.head]).permute(0, 2, 3, 1)
        scores = torch.matmul(q, k) * self.head**-0.5 + self._mask[:, self.history :]
        attention = torch.softmax(scores, dim=-1).mean(dim=1)
        return self.dropout(self.out_proj(torch.matmul(attention, v))), attention


class Back(nn.Module):  # type: ignore[misc, unused-ignore]
    """Everything after the static encoder: section 4.2 and 4.5, equations 17 to 23."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.history = HISTORY
        self.history_vsn = VSN(KNOWN + 1, dropout)
        self.history_encoder = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.future_vsn = VSN(KNOWN, dropout)
        self.future_encoder = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.input_gate = GLU(HIDDEN)
        self.input_gate_ln = nn.LayerNorm(HIDDEN, eps=EPSILON)
        self.enrichment_grn = GRN(HIDDEN, HIDDEN, context=True, dropout=dropout)
        self.attention = Attention(dropout)
        self.attention_gate = GLU(HIDDEN)
        self.attention_ln = nn.LayerNorm(HIDDEN, eps=EPSILON)
        self.positionwise_grn = GRN(HIDDEN, HIDDEN, dropout=dropout)
        self.decoder_gate = GLU(HIDDEN)
        self.decoder_ln = nn.LayerNorm(HIDDEN, eps=EPSILON)
        self.quantile_proj = nn.Linear(HIDDEN, len(QUANTILES))

    def forward(self, known: Tensor, past: Tensor, contexts: list[Tensor]) -> Explanation:
        selection, enrichment, hidden, cell = contexts
        before = torch.cat([known[:, : self.history], past], dim=-2)
        history, history_weights = self.history_vsn(before, selection)
        future, future_weights = self.future_vsn(known[:, self.history :], selection)
        first = (hidden.unsqueeze(0), cell.unsqueeze(0))
        encoded, state = self.history_encoder(history, first)
        decoded, _ = self.future_encoder(future, state)
        gated = self.input_gate(torch.cat([encoded, decoded], dim=1))
        temporal = self.input_gate_ln(gated + torch.cat([history, future], dim=1))
        enriched = self.enrichment_grn(temporal, enrichment)
        x, attention = self.attention(enriched)
        x = self.attention_ln(self.attention_gate(x) + enriched[:, self.history :])
        x = self.decoder_gate(self.positionwise_grn(x))
        forecast = self.quantile_proj(self.decoder_ln(x + temporal[:, self.history :]))
        return Explanation(forecast, history_weights, future_weights, attention)


class TemporalFusionTransformer(nn.Module):  # type: ignore[misc, unused-ignore]
    """A week of one series and what is known of the next day, to quantiles of that day's target."""

    def __init__(self, cardinality: int, dropout: float) -> None:
        super().__init__()
        self.embedding = Embedding(cardinality)
        self.static_encoder = StaticEncoder(dropout)
        self.TFTpart2 = Back(dropout)

    def forward(self, s_cat: Tensor, k_cont: Tensor, target: Tensor) -> Tensor:
        """Forecast P10, P50 and P90, [batch, 24, 3], of the normalised target.

        `s_cat` is int64 [batch, 192, 1], of which the first hour is read; `k_cont` [batch, 192, 3];
        `target` [batch, 192, 1], of which the first 168 hours are read.
        """
        static, known, past = self.embedding(s_cat, k_cont, target)
        forecast: Tensor = self.TFTpart2(known, past, self.static_encoder(static))[0]
        return forecast

    def explain(self, s_cat: Tensor, k_cont: Tensor, target: Tensor) -> Explanation:
        """Forecast as `forward` does, and return the weights that explain the forecast."""
        static, known, past = self.embedding(s_cat, k_cont, target)
        explanation: Explanation = self.TFTpart2(known, past, self.static_encoder(static))
        return explanation
