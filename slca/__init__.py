"""slca: SLCA-GRPO (arXiv 2609.29050) and its rivals for tool-calling language models, in JAX."""

__version__ = "0.1.0"
