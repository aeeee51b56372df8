"""The origin's ``alloc_*`` calls: each announces a tensor in a region of its own.

``alloc_<kind>`` announces a weight, ``alloc_<series>_<kind>`` its tensor in another series: ema,
half_ema, half, grad, half_grad, momentum, variance, norm.  ``parameter()`` makes all of them at
once; whoever makes them one by one announces every series in the order of the weights.
"""

from __future__ import annotations

from plan.builder import PlanBuilder, Shape
from plan.config import PlanConfig
from plan.dtensor import DTensor, sizes
from plan.dtype import DType
from plan.errors import PlanError
from plan.region import Region

GRAD_SLOTS = 4
"""Gradient slots of a plan, shared by the feature maps of one shape."""


class AllocCalls(PlanBuilder):
    """A builder with every ``alloc_*`` call.

    >>> from plan import MemoryPlan
    >>> MemoryPlan().alloc_grad_fc_weight((10, 64), "w.grad").region.name
    'G_FC_WEIGHT'
    """

    def __init__(self, config: PlanConfig | None = None) -> None:
        super().__init__(config)
        self._grad_slots: dict[int, DTensor] = {}

    def alloc_bn_bias(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce a norm's bias."""
        return self.alloc(Region.W_BN_BIAS, shape, name)

    def alloc_bn_weight(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce a norm's weight."""
        return self.alloc(Region.W_BN_WEIGHT, shape, name)

    def alloc_fc_bias(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce any other bias."""
        return self.alloc(Region.W_FC_BIAS, shape, name)

    def alloc_fc_weight(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce a fully connected weight."""
        return self.alloc(Region.W_FC_WEIGHT, shape, name)

    def alloc_first_conv(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the first convolution's weight."""
        return self.alloc(Region.W_FIRST_CONV, shape, name)

    def alloc_deep_conv(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce any other convolution's weight."""
        return self.alloc(Region.W_DEEP_CONV, shape, name)

    def alloc_ema_bn_bias(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the EMA of a norm's bias."""
        return self.alloc(Region.E_BN_BIAS, shape, name)

    def alloc_ema_bn_weight(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the EMA of a norm's weight."""
        return self.alloc(Region.E_BN_WEIGHT, shape, name)

    def alloc_ema_fc_bias(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the EMA of any other bias."""
        return self.alloc(Region.E_FC_BIAS, shape, name)

    def alloc_ema_fc_weight(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the EMA of a fully connected weight."""
        return self.alloc(Region.E_FC_WEIGHT, shape, name)

    def alloc_ema_first_conv(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the EMA of the first convolution's weight."""
        return self.alloc(Region.E_FIRST_CONV, shape, name)

    def alloc_ema_deep_conv(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the EMA of any other convolution's weight."""
        return self.alloc(Region.E_DEEP_CONV, shape, name)

    def alloc_half_ema_fc_weight(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the half EMA of a fully connected weight."""
        return self.alloc(Region.E_FC_WEIGHT_FP16, shape, name)

    def alloc_half_ema_first_conv(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the half EMA of the first convolution's weight."""
        return self.alloc(Region.E_FIRST_CONV_FP16, shape, name)

    def alloc_half_ema_deep_conv(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the half EMA of any other convolution's weight."""
        return self.alloc(Region.E_DEEP_CONV_FP16, shape, name)

    def alloc_half_fc_weight(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the half copy of a fully connected weight."""
        return self.alloc(Region.A_FC_WEIGHT, shape, name)

    def alloc_half_first_conv(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the half copy of the first convolution's weight."""
        return self.alloc(Region.A_FIRST_CONV, shape, name)

    def alloc_half_deep_conv(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the half copy of any other convolution's weight."""
        return self.alloc(Region.A_DEEP_CONV, shape, name)

    def alloc_grad_bn_bias(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the gradient of a norm's bias."""
        return self.alloc(Region.G_BN_BIAS, shape, name)

    def alloc_grad_bn_weight(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the gradient of a norm's weight."""
        return self.alloc(Region.G_BN_WEIGHT, shape, name)

    def alloc_grad_fc_bias(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the gradient of any other bias."""
        return self.alloc(Region.G_FC_BIAS, shape, name)

    def alloc_grad_fc_weight(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the gradient of a fully connected weight."""
        return self.alloc(Region.G_FC_WEIGHT, shape, name)

    def alloc_grad_first_conv(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the gradient of the first convolution's weight."""
        return self.alloc(Region.G_FIRST_CONV, shape, name)

    def alloc_grad_deep_conv(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the gradient of any other convolution's weight."""
        return self.alloc(Region.G_DEEP_CONV, shape, name)

    def alloc_half_grad_fc_weight(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the half gradient of a fully connected weight."""
        return self.alloc(Region.G_FC_WEIGHT_FP16, shape, name)

    def alloc_half_grad_first_conv(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the half gradient of the first convolution's weight."""
        return self.alloc(Region.G_FIRST_CONV_FP16, shape, name)

    def alloc_half_grad_deep_conv(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the half gradient of any other convolution's weight."""
        return self.alloc(Region.G_DEEP_CONV_FP16, shape, name)

    def alloc_momentum_bn_bias(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the first moment of a norm's bias."""
        return self.alloc(Region.M_BN_BIAS, shape, name)

    def alloc_momentum_bn_weight(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the first moment of a norm's weight."""
        return self.alloc(Region.M_BN_WEIGHT, shape, name)

    def alloc_momentum_fc_bias(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the first moment of any other bias."""
        return self.alloc(Region.M_FC_BIAS, shape, name)

    def alloc_momentum_fc_weight(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the first moment of a fully connected weight."""
        return self.alloc(Region.M_FC_WEIGHT, shape, name)

    def alloc_momentum_first_conv(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the first moment of the first convolution's weight."""
        return self.alloc(Region.M_FIRST_CONV, shape, name)

    def alloc_momentum_deep_conv(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the first moment of any other convolution's weight."""
        return self.alloc(Region.M_DEEP_CONV, shape, name)

    def alloc_variance_bn_bias(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the second moment of a norm's bias."""
        return self.alloc(Region.V_BN_BIAS, shape, name)

    def alloc_variance_bn_weight(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the second moment of a norm's weight."""
        return self.alloc(Region.V_BN_WEIGHT, shape, name)

    def alloc_variance_fc_bias(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the second moment of any other bias."""
        return self.alloc(Region.V_FC_BIAS, shape, name)

    def alloc_variance_fc_weight(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the second moment of a fully connected weight."""
        return self.alloc(Region.V_FC_WEIGHT, shape, name)

    def alloc_variance_first_conv(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the second moment of the first convolution's weight."""
        return self.alloc(Region.V_FIRST_CONV, shape, name)

    def alloc_variance_deep_conv(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the second moment of any other convolution's weight."""
        return self.alloc(Region.V_DEEP_CONV, shape, name)

    def alloc_norm_fc_weight(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the norms, four floats, of a fully connected weight."""
        return self.alloc(Region.N_FC_WEIGHT, shape, name)

    def alloc_norm_first_conv(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the norms, four floats, of the first convolution's weight."""
        return self.alloc(Region.N_FIRST_CONV, shape, name)

    def alloc_norm_deep_conv(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce the norms, four floats, of any other convolution's weight."""
        return self.alloc(Region.N_DEEP_CONV, shape, name)

    def alloc_bn_stats(self, channels: int, name: str | None = None) -> tuple[DTensor, ...]:
        """Announce running mean and variance of one BN, previous and next: four vectors."""
        regions = (Region.B_PREV_MEAN, Region.B_PREV_VAR, Region.B_NEXT_MEAN, Region.B_NEXT_VAR)
        return self.alloc_together(
            *((r, channels, name and f"{name}.{r.name[2:].lower()}", None) for r in regions)
        )

    def alloc_eq_bias(self, channels: int, name: str | None = None) -> DTensor:
        """Announce the equivalent bias of a convolution with its BN folded in."""
        return self.alloc(Region.W_EQ_BIAS, channels, name)

    def alloc_eq_scale(self, channels: int, name: str | None = None) -> DTensor:
        """Announce the equivalent scale of a convolution with its BN folded in."""
        return self.alloc(Region.W_EQ_SCALE, channels, name)

    def alloc_feature(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce a feature map (N, H, W, C), half where the plan has halves."""
        half = self.config.half is not None
        return self.alloc(Region.F_FEATURE_FP16 if half else Region.F_FEATURE_FP32, shape, name)

    def alloc_grad_slot(self, shape: Shape, slot: int) -> DTensor:
        """Return gradient slot 0..3, announced at its first use and shared from then on.

        Raises:
            PlanError: slot outside 0..3, or already taken with another shape.

        """
        if not 0 <= slot < GRAD_SLOTS:
            raise PlanError(f"grad slot: got {slot}, expected 0, 1, 2 or 3")
        taken = self._grad_slots.get(slot)
        if taken is None:
            half = self.config.half is not None
            region = Region.F_GRAD_SLOT_FP16 if half else Region.F_GRAD_SLOT_FP32
            taken = self._grad_slots[slot] = self.alloc(region, shape, f"grad_slot.{slot}")
        if taken.shape != sizes(shape):
            raise PlanError(
                f"grad slot {slot}: got shape {sizes(shape)}, expected {taken.shape} "
                "as at its first use; take another slot"
            )
        return taken

    def alloc_scalar(self, dtype: DType, name: str | None = None) -> DTensor:
        """Announce one scalar of the caller's own."""
        return self.alloc(_typed("S_SCALAR", dtype), 1, name, dtype)

    def alloc_mask(self, shape: Shape, name: str | None = None) -> DTensor:
        """Announce an INT8 mask (N, H, W, C), C padded to a multiple of 8."""
        return self.alloc(Region.S_MASK, shape, name)

    def alloc_temp(self, shape: Shape, dtype: DType, name: str | None = None) -> DTensor:
        """Announce a temporary."""
        return self.alloc(_typed("T_TEMP", dtype), shape, name, dtype)

    def alloc_inputs(
        self, label_shape: Shape, data_shape: Shape, dtype: DType
    ) -> tuple[DTensor, DTensor, DTensor, DTensor]:
        """Announce the double-buffered input: label and data of zones A and B, adjoining.

        Labels are INT32, data of ``dtype`` (half data pad C to a multiple of 4).
        """
        a, b, c, d, _ = self.alloc_together(
            (Region.I_A_LABEL, label_shape, "input_a.label", None),
            (Region.I_A_DATA, data_shape, "input_a.data", dtype),
            (Region.I_B_LABEL, label_shape, "input_b.label", None),
            (Region.I_B_DATA, data_shape, "input_b.data", dtype),
            (Region.R_PREDICTED_LABEL, label_shape, "predicted_label", None),
        )
        return a, b, c, d


def _typed(prefix: str, dtype: DType) -> Region:
    """Return the region of a type; both 16-bit floats share one, which is the plan's half."""
    return Region[f"{prefix}_{'FP16' if dtype.is_half else dtype.name}"]
