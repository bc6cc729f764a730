"""The method's configuration for a vLLM that the plugin does not know: it says so when a packed folder is served."""

from __future__ import annotations

from typing import Any

from humming_convert.findings import Finding, Refused
from humming_convert.serve.plugin import METHOD


def register_refusing(why: Finding) -> None:
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, register_quantization_config
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

    if METHOD in QUANTIZATION_METHODS:
        return

    class RefusingConfig(QuantizationConfig):
        """Raises Refused as soon as it is asked for."""

        def get_name(self) -> str:
            return METHOD

        def get_supported_act_dtypes(self) -> list[Any]:
            return []

        @classmethod
        def get_min_capability(cls) -> int:
            return 75

        @staticmethod
        def get_config_filenames() -> list[str]:
            return []

        @classmethod
        def from_config(cls, config: dict[str, Any]) -> Any:
            raise Refused([why])

        def get_quant_method(self, layer: Any, prefix: str) -> Any:
            raise Refused([why])

    register_quantization_config(METHOD)(RefusingConfig)
