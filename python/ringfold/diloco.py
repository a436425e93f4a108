"""DiLoCo: peers train locally for many steps and communicate rarely."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import pccl
from ringfold.elastic import PendingReduction, ReductionResult, Run, Unequal, prepare_optimizer
from ringfold.elastic.reduction import Operand
from ringfold.elastic.run import OWN_TAGS

try:
    import torch
except ImportError as error:  # pragma: no cover - tested in an environment without torch
    raise ImportError(
        "ringfold.DiLoCo needs PyTorch, which is not installed: pip install torch. "
        "(ringfold.Run and pccl work without it.)"
    ) from error

# The tag of the pseudo-gradient; the next one is for the sum of weights if it is reduced separately.
_TAG = OWN_TAGS + 2


class DiLoCo:
    """A model trained by peers that average their progress instead of their gradients.

    ::

        diloco = ringfold.DiLoCo(model)
        with ringfold.Run(address, state=diloco) as run:
            for step in run.steps(until=100):
                for _ in range(50):                    # a phase: as many inner steps as you like
                    train_one_batch(model, inner_optimizer)
                diloco.step(run, weight=samples_seen)

    Every peer has two copies of the parameters: those of the model, which inner steps change, and the *outer* parameters,
    which are equal on all peers. Each step of the run is one *phase* of training on local data.

    **The algorithm** (``overlap=False``). Phase *t* begins with the model at the outer parameters X(t). When peer *i* has
    trained it to Y(i,t), ``step`` computes its drift D(i,t) = X(t) - Y(i,t), and with its weight w(i) the pseudo-gradient
    G(t) = sum of w(i) D(i,t) / sum of w(i), over all peers. The outer optimiser makes one step from X(t) with the gradient
    G(t); the result X(t+1) is copied into the model. With plain SGD and a learning rate of 1 this is the average of all
    models. If all weights are 0 the outer optimiser makes no step.

    **Overlapped** (``overlap=True``). The reduction of phase *t* is in flight during phase *t+1*, and is applied one boundary
    later: X(t+2) = outer step from X(t+1) with G(t). So communication that is shorter than a phase costs no time. ``step``
    only marks the end of the phase; everything else happens at the boundary. Each peer keeps its own drift that the others
    have not seen yet: phase *t+1* begins with the model at X(t+1) - D(i,t), and D(i,t+1) is measured from there. (With one
    peer, plain SGD and a learning rate of 1 this is the same as no outer loop.) With ``keep_drift=False`` it begins at X(t+1)
    on all peers: then the model lacks the work of phase *t* until the boundary after next, and the gradients of the outer
    optimiser are one step old, which requires a smaller learning rate or less momentum. At the end of the run (``until``) the
    reduction in flight and the last phase are both applied, so that all peers end with the same parameters.

    **Joining and dying peers.** The shared state is: outer parameters, the state of the outer optimiser, frozen parameters,
    and buffers according to ``buffers``. A new peer receives it and trains from X; when overlapped it takes part in the
    current reduction with weight 0. The drift of a peer that dies is lost; the others average theirs.

    **Precision.** Outer parameters, drift and reduction are float32 (float64 if the model has such parameters), for any type
    of the model. D(i,t) is measured from the actual start of the model, after rounding to its types. ``quantization`` sends
    the pseudo-gradient in fewer bits; the sum of weights stays exact. The inner optimiser is local. Memory: the outer
    parameters, the state of the outer optimiser, and one flat buffer of the size of the parameters (two if overlapped or
    quantised), all on ``device`` and allocated once.

    Arguments:
        model: the model. Parameters that require a gradient are trained, in the order of ``named_parameters()``.
        outer_optimizer: creates the outer optimiser for a list of parameters. The default is
            ``SGD(lr=0.7, momentum=0.9, nesterov=True)``.
        overlap: reduce during the next phase.
        keep_drift: see above; for ``overlap`` only.
        quantization: ``pccl.QuantizationOptions`` for the pseudo-gradient.
        buffers: the handling of the model's buffers. ``"newcomers"``: a new peer receives them once, then each peer has its
            own; ``"shared"``: all peers receive those of the oldest one at each boundary; ``"local"``: not shared.
        device: the device of the outer parameters. The default is that of the model's first parameter; ``"cpu"`` saves
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
            raise ValueError("invalid model: no parameter requires a gradient")
        if buffers not in ("newcomers", "shared", "local"):
            raise ValueError(f'invalid buffers {buffers!r}: must be "newcomers", "shared" or "local"')
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
        # The last element is the sum of weights, so that one reduction is enough.
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
        """The outer optimiser; its learning rate may be changed between steps, equally on all peers."""
        prepare_optimizer(self.outer_optimizer)
        for outer, gradient in zip(self._outer, self._views(self._mean), strict=True):
            outer.grad = gradient
        self._in_flight: PendingReduction | None = None
        self._fresh = True
        self._phase_weight: float | None = None
        self._last: ReductionResult | None = None

    # Calls of the user

    def step(self, run: Run, weight: float | None = None) -> ReductionResult | None:
        """Ends a phase. Call it once in each step of the run, after the inner steps, on all peers.

        ``weight`` is this peer's weight in the average, such as its number of samples; the default is 1. With 0 the phase does
        not count, and the next one begins at the outer parameters.

        Returns the result of the reduction; when overlapped, that of the previous phase (``None`` in the first one).
        """
        share = 1.0 if weight is None else float(weight)
        if not math.isfinite(share) or share < 0:
            raise ValueError(f"invalid weight {weight}: must be finite and >= 0")
        if self._fresh:
            raise RuntimeError(
                "create the run with Run(address, state=diloco), which shares the outer parameters"
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
        """Copies the outer parameters into the model. When overlapped, call it before you save the model of a peer that
        leaves early."""
        for inner, outer in zip(self._inner, self._outer, strict=True):
            inner.copy_(outer)

    @property
    def outer_parameters(self) -> dict[str, torch.Tensor]:
        """The outer parameters by their names in the model."""
        return {name: outer.detach() for name, outer in zip(self._names, self._outer, strict=True)}

    # Calls of the run

    def shared_state(self) -> dict[str, Any]:
        """The state that is synchronised at each boundary."""
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
        """Before the votes: applies the reduction in flight, and measures the last phase."""
        if not self._overlap or self._in_flight is None:
            return
        if self._phase_weight is None:
            raise RuntimeError("DiLoCo.step() must be called once in every step of the run")
        weight, self._phase_weight = self._phase_weight, None
        self._last = self._in_flight.wait()
        self._in_flight = None
        # The start of the phase depends on the outer parameters and the drift, so measure before applying.
        self._measure(weight)
        self._apply()

    def launch(self, run: Run) -> None:
        """After the sync: sets the model to the start of the next phase, and starts the reduction of the last one."""
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
        """After the last step: averages the last phase, and copies the outer parameters into the model."""
        if not self._overlap:
            return
        self._last = self._start(run).wait()
        self._apply()
        self._drift.zero_()
        self.load_outer()

    # Implementation

    @torch.no_grad()
    def _measure(self, weight: float) -> None:
        """Fills the flat buffer: weight x (start of the phase - current model), and the weight."""
        drifts = self._views(self._drift)
        for inner, begin, drift in zip(self._inner, self._begins(), drifts, strict=True):
            # `begin` may depend on `drift`, which is overwritten only now.
            drift.copy_(begin).sub_(inner.to(drift.device, drift.dtype)).mul_(weight)
        self._drift[-1] = weight

    def _begins(self) -> Iterator[torch.Tensor]:
        """The parameters at the start of the phase, rounded to the types of the model."""
        weight = float(self._drift[-1]) if self._overlap and self._keep_drift else 0.0
        drifts = self._views(self._drift)
        for inner, outer, drift in zip(self._inner, self._outer, drifts, strict=True):
            begin = outer.detach()
            if weight > 0:
                # The buffer holds the drift multiplied by its weight.
                begin = begin - drift / weight
            yield begin.to(inner.dtype)

    def _start(self, run: Run) -> PendingReduction:
        """Starts the reduction of the drift. The weight is part of it, or separate if the drift is quantised."""
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
        """Makes one step of the outer optimiser with the reduced sums, which are equal on all peers."""
        weights = float(self._mean[-1])
        if weights > 0:
            self._mean[:-1].div_(weights)
            self.outer_optimizer.step()

    def _views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The views of a flat buffer in the shapes of the parameters."""
        views, end = [], 0
        for parameter in self._inner:
            begin, end = end, end + parameter.numel()
            views.append(flat[begin:end].view(parameter.shape))
        return views


def _nesterov(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)
