"""The engine's side of sending: receives names, says what changed, describes values."""

from jupyter_mgpu.on_engine.namespace.engine_namespace import EngineNamespace

__all__ = ["EngineNamespace"]
