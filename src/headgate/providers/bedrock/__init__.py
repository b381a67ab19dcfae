"""AWS Bedrock: Converse, ConverseStream and the embedding models behind InvokeModel."""

from headgate.providers.bedrock.options import BedrockOptions, read_options
from headgate.providers.bedrock.provider import BedrockProvider

__all__ = ["BedrockOptions", "BedrockProvider", "read_options"]
