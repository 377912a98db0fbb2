"""Hidden states out of an SGLang server, as training data for speculative-decoding drafters."""

__version__ = "0.1.0"
