"""Logical CPU devices under the name of an accelerator: the basis of the stand-ins for TPUs and for GPUs.

The accelerator's physical devices are added to TensorFlow's own context. Its functions then check and remember the settings of
a program for them (visible devices, memory growth, logical devices), and fail where they would fail on the accelerator. Each
logical device of the accelerator is a logical device of the CPU, on which everything is placed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import device_util
from tensorflow.python.eager import context

from ..patches import Function, around

# Libraries that query devices in order to choose a kernel: cuDNN's, or one that XLA compiles.
_CHOOSE_KERNELS = ("keras", "tf_keras")


class LogicalDevices:
    """The devices of one kind, "TPU" or "GPU"; `count` is called when the program first requests devices."""

    def __init__(self, kind: str, count: Callable[[], int]) -> None:
        self.kind = kind
        self.physical: list[Any] = []
        self._count, self._context = count, context.context()
        self._cpus = 1  # that the program requests; all other logical devices of the CPU are the accelerator
        self._name = re.compile(rf"(?<![a-z]){kind}(?=:|$)", re.IGNORECASE)

    @property
    def logical(self) -> list[Any]:
        """The devices that the program has made visible; one may be several logical ones."""
        self._context._initialize_physical_devices()
        settings, visible = self._context._virtual_device_map, self._context._visible_device_list
        count = sum(len(settings.get(device, (None,))) for device in self.physical if device in visible)
        return [context.LogicalDevice(f"/device:{self.kind}:{index}", self.kind) for index in range(count)]

    def install(self) -> None:
        """Add them to this process. Must come before any TensorFlow operation."""
        self._add_physical()
        self._keep_cpus_equal()
        self._list()
        self._place_on_cpus()

    def _add_physical(self) -> None:
        @around(context.Context, "_initialize_physical_devices")
        def initialize(original: Function, tf_context: Any, reinitialize: bool = False) -> None:
            if tf_context._physical_devices is not None and not reinitialize:
                return
            count = self._count()
            original(tf_context, reinitialize)
            self._cpu = next(device for device in tf_context._physical_devices if device.device_type == "CPU")
            self.physical[:] = [
                context.PhysicalDevice(f"/physical_device:{self.kind}:{index}", self.kind) for index in range(count)
            ]
            first = len(tf_context._physical_devices)
            tf_context._physical_device_to_index |= {device: first + at for at, device in enumerate(self.physical)}
            tf_context._physical_devices += self.physical
            tf_context._visible_device_list += self.physical
            if self.kind == "GPU":
                tf_context._memory_growth_map |= dict.fromkeys(self.physical)
            self._split_cpu()

    def _split_cpu(self) -> None:
        one = context.LogicalDeviceConfiguration()
        self._context._virtual_device_map[self._cpu] = [one] * max(len(self.logical), self._cpus)

    def _keep_cpus_equal(self) -> None:
        """Have as many logical CPU devices as there are logical devices of this kind, until TensorFlow starts."""
        for name in ("set_visible_devices", "set_logical_device_configuration"):

            @around(context.Context, name)
            def changed(original: Function, tf_context: Any, device: Any, *args: Any, **options: Any) -> None:
                original(tf_context, device, *args, **options)
                if device == self._cpu:
                    self._cpus = len(tf_context._virtual_device_map[device])
                if tf_context._context_handle is None:
                    self._split_cpu()

    def _list(self) -> None:
        def physical(original: Function, device_type: str | None = None) -> list[Any]:
            devices = original(device_type)
            return [device for device in devices if device.device_type != self.kind] if _chooses_kernels() else devices

        def logical(original: Function, device_type: str | None = None) -> list[Any]:
            cpus = [device for device in original() if device.device_type == "CPU"][: self._cpus]
            devices = [*cpus, *(device for device in original() if device.device_type != "CPU")]
            devices += [] if _chooses_kernels() else self.logical
            return [device for device in devices if device_type in (None, device.device_type)]

        for module in (tf.config, tf.config.experimental):
            around(module, "list_physical_devices")(physical)
            around(module, "list_logical_devices")(logical)

    def _place_on_cpus(self) -> None:
        around(tf, "device")(lambda original, name: original(self.placed(name)))

        # Strategies ask this for the name of each of their devices.
        @around(device_util, "canonicalize")
        def canonicalize(original: Function, device: Any, default: Any = None) -> str:
            return str(original(self.placed(device), default=self.placed(default)))

    def placed(self, device: Any) -> Any:
        """Return the name of the CPU device that stands in for a device."""
        name = device.name if isinstance(device, context.LogicalDevice) else device
        return self._name.sub("CPU", name) if isinstance(name, str) else name


def _chooses_kernels() -> bool:
    """Return whether the caller of the patched function does; the frames between are `around`'s and the replacement's."""
    name = str(sys._getframe(3).f_globals.get("__name__", ""))
    return name.partition(".")[0] in _CHOOSE_KERNELS
