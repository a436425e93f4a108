"""DiLoCo: peers that train on their own for many steps, and talk only now and then."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import pccl
from ringfold.elastic import Reduced, Reducing, Run, Unequal, prepare_optimizer
from ringfold.elastic.reducing import Operand
from ringfold.elastic.run import OWN_TAGS

try:
    import torch
except ImportError as error:  # pragma: no cover - tested in an environment without torch
    raise ImportError(
        "ringfold.DiLoCo wraps a PyTorch model, and PyTorch is not installed: pip install torch. "
        "(ringfold.Run and pccl work without it.)"
    ) from error

# The tag of the pseudo-gradient; the next one is that of the sum of weights where it travels beside it.
_TAG = OWN_TAGS + 2


class DiLoCo:
    """A model that is trained by peers which average their progress, and not their gradients.

    ::

        diloco = ringfold.DiLoCo(model)
        with ringfold.Run(address, state=diloco) as run:
            for step in run.steps(until=100):
                for _ in range(50):                    # a phase: as many inner steps as you like
                    train_one_batch(model, inner_optimizer)
                diloco.step(run, weight=samples_seen)

    Every peer has two copies of the parameters: the model's own, which inner steps change, and the *outer* parameters,
    which are equal on all peers. Each step of the run is one *phase* of training on local data.

    **What is computed** (``overlap=False``). Phase *t* begins with the model at the outer parameters X(t). When peer *i*
    has trained it to Y(i,t), ``step`` computes its drift D(i,t) = X(t) - Y(i,t), and with its weight w(i) the
    pseudo-gradient G(t) = sum of w(i) D(i,t) / sum of w(i), over the peers that take part. The outer optimiser makes one
    step from X(t) with the gradient G(t); that gives X(t+1), which is copied into the model. With plain SGD and a
    learning rate of 1 this is the average of all models. If all weights are 0 the outer optimiser makes no step.

    **Overlapped** (``overlap=True``). The reduction of phase *t* is in flight while phase *t+1* computes, and is applied
    one boundary later: X(t+2) = outer step from X(t+1) with G(t). So communication costs no time as long as it takes less
    than a phase. ``step`` then only tells that the phase is over; everything else happens at the boundary, before and
    after the votes. Meanwhile a peer keeps its own drift that the others have not seen yet: phase *t+1* begins with the
    model at X(t+1) - D(i,t), and D(i,t+1) is measured from there. (With one peer, plain SGD and a learning rate of 1
    this is the same as no outer loop at all.) With ``keep_drift=False`` it begins at X(t+1) on all peers: the work of
    phase *t* is then not in the model until the boundary after next, and the outer optimiser sees gradients that are
    one step old, which wants a smaller learning rate or less momentum. At the end of the run (``until``) what is in flight and
    the last phase are both applied, so that all peers end with the same parameters and nothing is lost.

    **Peers that come and go.** The shared state is: outer parameters, the outer optimiser's state, frozen parameters,
    and buffers as ``buffers`` says. A newcomer receives it and trains from X; when overlapped it takes part in the
    reduction that is launched right then with weight 0. A peer that dies is not part of G(t): its drift is
    lost, the others average theirs.

    **Precision.** Outer parameters, drift and reduction are float32 (float64 if the model has such parameters),
    whatever the model's types are. D(i,t) is measured from what the model really began with, after rounding to its
    types. ``quantization`` sends the pseudo-gradient in fewer bits; the sum of weights stays exact. The inner optimiser is
    local and is never shared. Memory: the outer parameters, the outer optimiser's state, and one flat buffer of the size of
    the parameters (two if overlapped or quantised), all on ``device`` and allocated once.

    Arguments:
        model: the model. Parameters that require a gradient are trained, in the order of ``named_parameters()``.
        outer_optimizer: makes the outer optimiser for a list of parameters. The default is
            ``SGD(lr=0.7, momentum=0.9, nesterov=True)``.
        overlap: reduce while the next phase computes.
        keep_drift: see above; for ``overlap`` only.
        quantization: ``pccl.QuantizationOptions`` for the pseudo-gradient.
        buffers: what to do with the model's buffers. ``"newcomers"``: a newcomer receives them once, then each peer
            has its own; ``"shared"``: all peers take over those of the oldest one at each boundary; ``"local"``: nothing.
        device: where outer parameters live. The default is that of the model's first parameter; ``"cpu"`` spares
            GPU memory.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        outer_optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer] | None = None,
        *,
        overlap: bool = False,
        keep_drift: bool = True,
        quantization: pccl.QuantizationOptions | None = None,
        buffers: Literal["newcomers", "shared", "local"] = "newcomers",
        device: torch.device | str | None = None,
    ) -> None:
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not trained:
            raise ValueError("no parameter of the model requires a gradient: there is nothing to train")
        if buffers not in ("newcomers", "shared", "local"):
            raise ValueError(f'buffers are "newcomers", "shared" or "local", and not {buffers!r}')
        self.model = model
        self._names = list(trained)
        self._inner = list(trained.values())
        self._overlap = overlap
        self._keep_drift = keep_drift
        self._quantization = quantization
        self._buffers = buffers
        wide = any(p.dtype == torch.float64 for p in self._inner)
        dtype = torch.float64 if wide else torch.float32
        at = torch.device(device) if device is not None else self._inner[0].device
        count = sum(p.numel() for p in self._inner)
        # The sum of weights is the last element: one reduction carries both.
        self._drift = torch.zeros(count + 1, dtype=dtype, device=at)
        apart = overlap or quantization is not None
        self._mean = torch.zeros_like(self._drift) if apart else self._drift
        flat = torch.empty(count, dtype=dtype, device=at)
        self._outer = [torch.nn.Parameter(view) for view in self._views(flat)]
        with torch.no_grad():
            for outer, inner in zip(self._outer, self._inner, strict=True):
                outer.copy_(inner)
        make = outer_optimizer or _nesterov
        self.outer_optimizer: torch.optim.Optimizer = make(self._outer)
        """The outer optimiser; its learning rate may be changed between steps, on all peers alike."""
        prepare_optimizer(self.outer_optimizer)
        for outer, gradient in zip(self._outer, self._views(self._mean), strict=True):
            outer.grad = gradient
        self._in_flight: Reducing | None = None
        self._fresh = True
        self._phase_weight: float | None = None
        self._last: Reduced | None = None

    # What users call

    def step(self, run: Run, weight: float | None = None) -> Reduced | None:
        """Ends a phase: once in each step of the run, after the inner steps, on all peers.

        ``weight`` is this peer's share in the average, the number of samples or tokens it has seen perhaps; 1 if it is
        not given. With 0 the phase does not count, for this peer neither: its next one begins at the outer parameters.

        Returns what the reduction moved and how many peers took part; when overlapped, that of the phase before
        (``None`` in the first one).
        """
        share = 1.0 if weight is None else float(weight)
        if not math.isfinite(share) or share < 0:
            raise ValueError(f"a weight is finite and not negative, and not {weight}")
        if self._fresh:
            raise RuntimeError(
                "make the run with Run(address, state=diloco): the outer parameters are shared by it"
            )
        if self._phase_weight is not None:
            raise RuntimeError("DiLoCo.step() was called twice in one step of the run")
        if self._overlap:
            self._phase_weight = share
            return self._last
        self._measure(share)
        self._last = self._start(run).wait()
        self._apply()
        self.load_outer()
        return self._last

    @torch.no_grad()
    def load_outer(self) -> None:
        """Copies the outer parameters, which are equal on all peers, into the model. When overlapped, this is for those
        who leave early and want to keep what the run has, and not what they have."""
        for inner, outer in zip(self._inner, self._outer, strict=True):
            inner.copy_(outer)

    @property
    def outer_parameters(self) -> dict[str, torch.Tensor]:
        """The outer parameters by the names they have in the model."""
        return {name: outer.detach() for name, outer in zip(self._names, self._outer, strict=True)}

    # What the run calls

    def shared_state(self) -> dict[str, Any]:
        """What all peers agree on at each boundary. The run asks for it."""
        trained = set(self._names)
        frozen = {name: p for name, p in self.model.named_parameters() if name not in trained}
        state: dict[str, Any] = {"outer": self.outer_parameters, "optimizer": self.outer_optimizer}
        if frozen:
            state["frozen"] = frozen
        held = dict(self.model.named_buffers())
        if held and self._buffers != "local":
            state["buffers"] = held if self._buffers == "shared" else Unequal(held)
        return state

    def settle(self, run: Run) -> None:
        """Before the votes: what is in flight is waited for and applied, and the phase that just ended is measured."""
        if not self._overlap or self._in_flight is None:
            return
        if self._phase_weight is None:
            raise RuntimeError("DiLoCo.step() has to be called once in every step of the run")
        weight, self._phase_weight = self._phase_weight, None
        self._last = self._in_flight.wait()
        self._in_flight = None
        # Where the phase began is told by the outer parameters as they still are, and the drift in flight.
        self._measure(weight)
        self._apply()

    def launch(self, run: Run) -> None:
        """After the sync: the model takes its place for the next phase, and the last one's drift goes out."""
        received = run.synced is not None and run.synced.rx_bytes > 0
        if self._fresh:
            self._drift.zero_()
        if self._overlap:
            with torch.no_grad():
                for inner, begin in zip(self._inner, self._begins(), strict=True):
                    inner.copy_(begin)
            self._in_flight = self._start(run)
        elif self._fresh or received:
            self.load_outer()
        self._fresh = False

    def finish(self, run: Run) -> None:
        """After the last step of all: the last phase is averaged too, and the model is the outer one."""
        if not self._overlap:
            return
        self._last = self._start(run).wait()
        self._apply()
        self._drift.zero_()
        self.load_outer()

    # How it is done

    @torch.no_grad()
    def _measure(self, weight: float) -> None:
        """Fills the flat buffer: weight x (where the phase began - where the model is now), and the weight."""
        drifts = self._views(self._drift)
        for inner, begin, drift in zip(self._inner, self._begins(), drifts, strict=True):
            # `begin` may have been computed from `drift`, which is overwritten only now.
            drift.copy_(begin).sub_(inner.to(drift.device, drift.dtype)).mul_(weight)
        self._drift[-1] = weight

    def _begins(self) -> Iterator[torch.Tensor]:
        """Where the model began the phase, parameter by parameter, rounded as the model rounds."""
        weight = float(self._drift[-1]) if self._overlap and self._keep_drift else 0.0
        drifts = self._views(self._drift)
        for inner, outer, drift in zip(self._inner, self._outer, drifts, strict=True):
            begin = outer.detach()
            if weight > 0:
                # The drift lies there multiplied by its weight. Divided by it, it is the same here each time.
                begin = begin - drift / weight
            yield begin.to(inner.dtype)

    def _start(self, run: Run) -> Reducing:
        """Sends the drift out. The weight travels with it, or by its side if the drift is quantised."""
        if self._drift.is_cuda:
            torch.cuda.current_stream(self._drift.device).synchronize()
        total = pccl.ReduceOp.SUM
        if self._quantization is None:
            return run.start([Operand(self._drift, self._mean, _TAG, total)])
        drift = Operand(self._drift[:-1], self._mean[:-1], _TAG, total, quantization=self._quantization)
        weight = Operand(self._drift[-1:], self._mean[-1:], _TAG + 1, total)
        return run.start([weight, drift])

    @torch.no_grad()
    def _apply(self) -> None:
        """One step of the outer optimiser, from the sums that have arrived. All peers have the same bits of them, so
        they all do the same."""
        weights = float(self._mean[-1])
        if weights > 0:
            self._mean[:-1].div_(weights)
            self.outer_optimizer.step()

    def _views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The parts of a flat buffer, each in the shape of its parameter."""
        views, end = [], 0
        for parameter in self._inner:
            begin, end = end, end + parameter.numel()
            views.append(flat[begin:end].view(parameter.shape))
        return views


def _nesterov(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)
