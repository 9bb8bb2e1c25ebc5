"""The OpenAI-compatible endpoint: wire format, decoding service, HTTP routes, deployment."""

__all__: list[str] = []
