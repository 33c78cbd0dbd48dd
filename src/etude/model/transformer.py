"""The network: maps tokens to logits, hidden states and the experts that were used.

`forward` processes whole sequences (training, packed documents, router replay), `extend` generates with a cache.
A test checks that the two agree to 1e-5 in fp32. In an `invariant` network they agree bit by bit and do not depend on
the rest of the batch. `initialise` derives every parameter from the seed and the parameter's name alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, cast

import torch
from torch import Tensor, nn

from etude.model.attend import Mask, document_starts
from etude.model.attention import Attention, Context
from etude.model.block import Block, MixtureOfExperts
from etude.model.config import ModelConfig
from etude.model.embedding import Embedding
from etude.model.errors import ModelError
from etude.model.head import Head
from etude.model.linear import UnsetLinear
from etude.model.lora import adapter_state
from etude.model.mtp import MtpLayer
from etude.model.norm import RMSNorm
from etude.model.pieces import Packed
from etude.model.placing import count_experts
from etude.model.published_state import published_state
from etude.model.rope import Rotary
from etude.model.router import Replay, Routing
from etude.model.router import balance_loss as router_balance_loss
from etude.model.step import Step


@dataclass(frozen=True, slots=True)
class Output:
    logits_btv: Tensor
    hidden_bth: Tensor
    """Hidden states after the final norm, which the output head and the MTP heads read."""
    head: Head
    """The output head, for losses of these hidden states: a tied embedding then has one gradient for both uses."""
    experts_btlk: Tensor
    """Experts used by each token in each MoE layer."""
    load_le: Tensor
    """Number of tokens routed to each expert of each MoE layer. Padding (negative document ids) does not count."""
    overridden_bt: Tensor | None = None
    """Whether replay made a token use, in any layer, an expert that the router would not have chosen; None without
    replay."""
    refused_bt: Tensor | None = None
    """Whether mode "filter" replaced one of a token's recorded experts in any layer; None without replay."""
    balance_loss: Tensor | None = None
    """The auxiliary loss that evens the experts' load, if the forward pass was asked for it."""


@dataclass(frozen=True, slots=True)
class MtpHidden:
    hidden: list[Tensor]
    """Hidden states of each head after its norm, which the output head reads. Head k (from 0) has [B, T - 1 - k, H];
    its row t predicts token t + 2 + k, as row t + 1 + k of the trunk does."""
    load_ke: Tensor
    """Number of tokens routed to each expert of each head's MoE layer."""


@dataclass(frozen=True, slots=True)
class MtpOutput:
    logits: list[Tensor]
    """Logits of each head in fp32, from the hidden states of `MtpHidden`."""
    load_ke: Tensor


@dataclass(frozen=True, slots=True)
class ExtendOutput:
    """Results of `Transformer.extend` for the flat list of a step's tokens; entries of padding are arbitrary."""

    logits_rv: Tensor
    """Logits at the tokens chosen by `read_r`; by default at all tokens."""
    hidden_th: Tensor
    """Hidden states after the final norm."""
    experts_tlk: Tensor
    """Experts used by each token in each MoE layer."""


class Transformer(nn.Module):
    invariant = False
    """Whether to compute batch-invariantly: the result of a token then does not depend on the rest of its batch."""
    wide_head_vh: Tensor | None = None
    """The output head's weight in fp32, which `prepare` caches for inference."""
    origin: Path | None = None
    """The checkpoint that the network was loaded from. What that holds beside the network, such as a vision tower, is
    written again with it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        # Created empty, because filling a tensor on the meta device makes torch load its compiler, which takes seconds.
        empty_vh = torch.empty(config.vocab_size, config.hidden_size)
        self.embed_tokens = Embedding.from_pretrained(empty_vh, freeze=False)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head: nn.Linear | None = None
        if not config.tie_word_embeddings:
            self.lm_head = UnsetLinear(config.hidden_size, config.vocab_size, bias=False)
        self.mtp = nn.ModuleList(MtpLayer(config, head) for head in range(config.num_nextn_predict_layers))
        self.rotary = Rotary(config.rope, config.attention.rope)
        if not self.embed_tokens.weight.is_meta:
            self.initialise(0)

    @torch.no_grad()
    def initialise(self, seed: int, names: Collection[str] | None = None) -> Self:
        """Set norms to 1, biases to 0, and all other parameters to normal random numbers. `names` are the tensors to
        set; None sets all."""
        for name, parameter in self.named_parameters():
            if names is not None and name not in names:
                continue
            if name.endswith(("norm.weight", ".bias")):
                parameter.fill_(float(name.endswith("norm.weight")))
                continue
            digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * self.config.initializer_range)
        for name, bias in self.named_buffers():
            if names is None or name in names:
                bias.zero_()
        return self

    def take_positions(self, config: ModelConfig) -> None:
        """Take over the rotary positions of `config`, which describes this network with another context
        (`ModelConfig.extended`). Parameters and adapters stay as they are."""
        turn = self.rotary.turn
        self.config, self.rotary = config, Rotary(config.rope, config.attention.rope)
        self.rotary.turn = turn
        for module in self.modules():
            if isinstance(module, Attention):
                module.scale = config.softmax_scale

    def checkpoint_activations(self, on: bool) -> None:
        """Choose whether training passes keep only each layer's input and compute its activations again in the backward
        pass (recompute.py). No result changes by a bit."""
        for module in self.modules():
            if isinstance(module, Block):
                module.checkpointed = on

    def forward(
        self,
        tokens_bt: Tensor,
        *,
        positions_bt: Tensor | None = None,
        documents_bt: Tensor | None = None,
        replay: Replay | None = None,
        logits: bool = True,
        balance_loss: bool = False,
    ) -> Output:
        """Run whole sequences through the network.

        `documents_bt` holds the document id of each token, for rows with several documents; negative ids are padding.
        A document is a run of equal ids in one row, and attention is causal within it. Without `positions_bt`, each
        document's positions start at 0. With `logits=False` the logits are empty ([B, 0, V]), for the losses of
        `head_losses.py`, which compute them in chunks from `hidden_bth`.
        """
        batch, length = tokens_bt.shape
        replay = replay.checked(self.config, batch, length) if replay is not None else None
        rotation = self.rotary(_positions(tokens_bt, positions_bt, documents_bt))
        context = self._context(tokens_bt, documents_bt)
        x, head = self._embed_with_head(tokens_bt)
        routings: list[Routing] = []
        for block in self.layers:
            replayed = replay.experts_btlk[:, :, len(routings)] if replay is not None and block.moe else None
            x, routing = block(x, rotation, context, replay, replayed)
            routings += [routing] if routing is not None else []
        hidden, load_le = self.norm(x), self._load(routings, documents_bt)
        counted_n = None if documents_bt is None else documents_bt.flatten() >= 0
        return Output(
            logits_btv=head.logits(hidden if logits else hidden[:, :0]),
            hidden_bth=hidden,
            head=head,
            experts_btlk=self._experts(routings, batch, length),
            load_le=load_le,
            overridden_bt=_in_any_layer([r.overridden_n for r in routings], batch, length),
            refused_bt=_in_any_layer([r.refused_n for r in routings], batch, length),
            balance_loss=router_balance_loss(routings, load_le, counted_n) if balance_loss else None,
        )

    def mtp_hidden(
        self,
        output: Output,
        tokens_bt: Tensor,
        *,
        positions_bt: Tensor | None = None,
        documents_bt: Tensor | None = None,
    ) -> MtpHidden:
        """Run the MTP heads on the output of a forward pass, given the same tokens, positions and documents.

        At the last positions of a document the heads read a token of the next document, so mask those rows in the loss.
        """
        positions = _positions(tokens_bt, positions_bt, documents_bt)
        hidden, found, routings = output.hidden_bth, [], []
        for head, layer in enumerate(self.mtp):
            length = tokens_bt.shape[1] - 1 - head
            if length < 1:
                raise ModelError(f"{tokens_bt.shape[1]} tokens are too few for MTP head {head + 1}")
            documents = None if documents_bt is None else documents_bt[:, :length]
            context = self._context(tokens_bt[:, :length], documents)
            embedded = self._embed(tokens_bt[:, head + 1 :])
            hidden, routing = layer(embedded, hidden[:, :length], self.rotary(positions[:, :length]), context)
            found.append(hidden)
            routings += [self._load([routing], documents)] if routing is not None else []
        empty = torch.zeros(0, self.config.n_routed_experts, dtype=torch.int64, device=tokens_bt.device)
        return MtpHidden(found, torch.cat(routings) if routings else empty)

    def mtp_logits(
        self,
        output: Output,
        tokens_bt: Tensor,
        *,
        positions_bt: Tensor | None = None,
        documents_bt: Tensor | None = None,
    ) -> MtpOutput:
        """Run the MTP heads as `mtp_hidden` does, and return the logits of all their positions."""
        heads = self.mtp_hidden(output, tokens_bt, positions_bt=positions_bt, documents_bt=documents_bt)
        return MtpOutput([self.logits_of(hidden) for hidden in heads.hidden], heads.load_ke)

    @torch.inference_mode()
    def extend(self, tokens_t: Tensor, step: Step, read_r: Tensor | None = None) -> ExtendOutput:
        """Feed the tokens of a step (`cache.step(...)`) to the network.

        Logits are computed only at the indices `read_r` of the token list; None means all. A row's result depends on
        padding and other rows only through rounding, and not at all if the network and the cache are `invariant`.
        """
        rotation = self.rotary(step.rotated_t[None])
        x = self._embed(tokens_t[None])
        routings: list[Routing] = []
        for layer, block in enumerate(self.layers):
            x, routing = block(x, rotation, step.of(layer))
            routings += [routing] if routing is not None else []
        hidden = self.norm(x).squeeze(0)
        experts = self._experts(routings, 1, len(tokens_t)).squeeze(0)
        return ExtendOutput(self.logits_of(hidden if read_r is None else hidden[read_r]), hidden, experts)

    @torch.inference_mode()
    def draft(self, hidden_th: Tensor, next_t: Tensor, step: Step, read_r: Tensor) -> Tensor:
        """Run a step through the first MTP head and return its logits for the token after next, at indices `read_r`.

        `hidden_th` are the hidden states that `extend` returned for the same step, `next_t` the tokens one position
        later. Every position must be fed once, prompts included, because the head attends to its own entries.
        """
        if not self.mtp:
            raise ModelError("the model has no MTP head: num_nextn_predict_layers is 0")
        layer = step.of(self.config.num_hidden_layers)
        hidden, _ = self.mtp[0](self._embed(next_t[None]), hidden_th[None], self.rotary(step.rotated_t[None]), layer)
        return self.logits_of(hidden[0, read_r])

    def balance(self, load_le: Tensor, rate: float, mtp_load_ke: Tensor | None = None) -> None:
        """Change the biases of the routers towards an even load of the experts. The loads are those of the batch of the
        optimizer step just taken; without `mtp_load_ke` the MTP heads' routers are left alone. Does nothing where
        routers have no biases; there `Output.balance_loss` evens the load."""
        if self.config.mixture is None or not self.config.mixture.selection_bias:
            return
        for mixture, load in zip(self._mixtures(self.layers), load_le, strict=True):
            mixture.gate.balance(load, rate)
        if mtp_load_ke is not None:
            for mixture, load in zip(self._mixtures(self.mtp), mtp_load_ke, strict=True):
                mixture.gate.balance(load, rate)

    def _embed(self, tokens: Tensor) -> Tensor:
        return self._scaled(self.embed_tokens(tokens))

    def _embed_with_head(self, tokens: Tensor) -> tuple[Tensor, Head]:
        if self.lm_head is not None:
            return self._embed(tokens), self.head
        x, weight_vh = self.embed_tokens.with_head(tokens)
        return self._scaled(x), replace(self.head, weight_vh=weight_vh)

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self.config.embedding_scale == 1 else x * self.config.embedding_scale

    @property
    def device(self) -> torch.device:
        return cast(torch.device, self.embed_tokens.weight.device)

    @property
    def head(self) -> Head:
        """The output head; its weight is the embedding if the two are tied."""
        weight_vh = self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        # The cache is for inference alone: it would miss the optimizer's steps.
        return Head(weight_vh, self.invariant, None if torch.is_grad_enabled() else self.wide_head_vh)

    def logits_of(self, hidden: Tensor) -> Tensor:
        """Compute fp32 logits from hidden states after the final norm."""
        return self.head.logits(hidden)

    def swapped_state(self) -> dict[str, Tensor]:
        """Return the tensors that differ between versions of this network: its adapters if it has any, else all, by
        their published names. They share the network's memory."""
        return adapter_state(self) or published_state(self.config, self.state_dict())

    @torch.no_grad()
    def prepare(self) -> None:
        """Cache the output head in fp32 for inference. Later changes of the weight have no effect until the next
        call."""
        self.wide_head_vh = None
        if self.embed_tokens.weight.dtype != torch.float32:
            self.wide_head_vh = self.head.widened().wide_vh

    def _context(self, tokens_bt: Tensor, documents_bt: Tensor | None) -> Context:
        mask = Mask.build(tokens_bt.shape[1], documents_bt, self.embed_tokens.weight.dtype, tokens_bt.device)
        if not self.invariant:
            return mask
        documents = torch.zeros_like(tokens_bt) if documents_bt is None else documents_bt
        return Packed.of(mask, documents, self.config.cache_shape[0], self.config.heads_per_group)

    def _experts(self, routings: list[Routing], batch: int, length: int) -> Tensor:
        k = self.config.num_experts_per_tok
        if not routings:
            return torch.zeros(batch, length, 0, k, dtype=torch.int64, device=self.embed_tokens.weight.device)
        return torch.stack([r.experts_nk for r in routings], dim=1).view(batch, length, len(routings), k)

    def _load(self, routings: list[Routing], documents_bt: Tensor | None) -> Tensor:
        experts = self.config.n_routed_experts
        if not routings:
            return torch.zeros(0, experts, dtype=torch.int64, device=self.embed_tokens.weight.device)
        counted_n1 = None if documents_bt is None else documents_bt.reshape(-1, 1) >= 0
        return torch.stack([count_experts(routing.experts_nk, experts, counted_n1) for routing in routings])

    @staticmethod
    def _mixtures(modules: nn.ModuleList) -> list[MixtureOfExperts]:
        return [module for module in modules.modules() if isinstance(module, MixtureOfExperts)]


def _positions(tokens_bt: Tensor, positions_bt: Tensor | None, documents_bt: Tensor | None) -> Tensor:
    """Return `positions_bt` if given, else each token's position within its document."""
    if positions_bt is not None:
        return positions_bt
    count = torch.arange(tokens_bt.shape[1], device=tokens_bt.device).expand_as(tokens_bt)
    if documents_bt is None:
        return count
    return count - torch.where(document_starts(documents_bt), count, 0).cummax(1).values


def _in_any_layer(marks: list[Tensor | None], batch: int, length: int) -> Tensor | None:
    """Return a mask [batch, length] that is True where any layer's is; None if no layer has one."""
    marked = [mark_n for mark_n in marks if mark_n is not None]
    return torch.stack(marked).any(0).view(batch, length) if marked else None
