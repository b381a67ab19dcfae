"""AWS Bedrock: Converse, ConverseStream and the embedding models behind InvokeModel."""

from headgate.providers.bedrock.options import BedrockOptions, options_for
from headgate.providers.bedrock.provider import BedrockProvider

__all__ = ["BedrockOptions", "BedrockProvider", "options_for"]
