"""vLLM's plugin: `quant_method: humming_packed`. `register` is the entry point; nothing else here is imported before vLLM.

Facts: runtimes.md 3.1, 3.2; vLLM 0.33 (`plugins`, `layers.quantization`).
"""

from __future__ import annotations

METHOD = "humming_packed"


def register() -> None:
    """Makes the method known to vLLM. vLLM calls it in every process, and it may be called again.

    A vLLM that the plugin was not tested with gets a configuration that refuses packed folders, so that other models are served as ever.
    """
    from humming_convert.serve.plugin.tested import untested

    why = untested()
    if why is None:
        from humming_convert.serve.plugin.config import register_config

        register_config()
    else:
        from humming_convert.serve.plugin.refusing import register_refusing

        register_refusing(why)
