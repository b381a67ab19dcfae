"""The environment of the first newsletter: its BEDROCK_* names with their defaults, as one checked record."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import headgate

MODEL_ID = "BEDROCK_MODEL_ID"
PROFILE_ARN = "BEDROCK_INFERENCE_PROFILE_ARN"
REGION = "BEDROCK_REGION"
MAX_PARALLEL = "BEDROCK_MAX_PARALLEL"
REQUEST_INTERVAL = "BEDROCK_REQUEST_INTERVAL"
RETRY_BASE_DELAY = "BEDROCK_RETRY_BASE_DELAY"
MAX_BACKOFF = "BEDROCK_MAX_BACKOFF"
MAX_RETRIES = "BEDROCK_MAX_RETRIES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bedrock:
    """How the judge calls Bedrock. Four retries are five attempts; a longest wait of 20 s means 20 s."""

    model_id: str = ""
    inference_profile_arn: str = ""
    """Goes before the model id."""
    region: str = "ap-northeast-1"
    max_parallel: int = 5
    request_interval_s: float = 2.5
    """Between two starts, over all slots: the first design let every slot wait for itself, and all fired together."""
    retry_base_delay_s: float = 2.0
    max_backoff_s: float = 20.0
    max_retries: int = 4

    @property
    def model(self) -> str:
        return self.inference_profile_arn or self.model_id

    @property
    def model_setting(self) -> str:
        """The variable that names the model."""
        return PROFILE_ARN if self.inference_profile_arn else MODEL_ID

    def model_settings(self, upstream: Mapping[str, Any], *, interval_s: float) -> dict[str, Any]:
        """An entry under `models` in the settings, with this upstream."""
        retry = {
            "max_retries": self.max_retries,
            "first_wait_s": self.retry_base_delay_s,
            "longest_wait_s": self.max_backoff_s,
            "jitter": "additive",
            "jitter_share": 0.5,
            "count_throttles": True,
        }
        gate = {"slots": self.max_parallel, "interval_s": interval_s, "depth": 0}
        return {"upstreams": [{**upstream, **gate}], "retry": retry}


def read_environment(env: Mapping[str, str]) -> Bedrock:
    """What the variables say; an empty one is as good as none. Every mistake is in the one error raised."""
    review, defaults = headgate.Review(), Bedrock()

    def number(name: str, default: float, least: float = 0.0, *, whole: bool = False) -> Any:
        text = env.get(name, "").strip()
        value: Any = default
        if text:
            try:
                value = int(text) if whole else float(text)
            except ValueError:
                value = text
        review.number(name, value, least=least, whole=whole)
        return value

    found = Bedrock(
        model_id=env.get(MODEL_ID, "").strip(),
        inference_profile_arn=env.get(PROFILE_ARN, "").strip(),
        region=env.get(REGION, "").strip() or defaults.region,
        max_parallel=number(MAX_PARALLEL, defaults.max_parallel, 1, whole=True),
        request_interval_s=number(REQUEST_INTERVAL, defaults.request_interval_s),
        retry_base_delay_s=number(RETRY_BASE_DELAY, defaults.retry_base_delay_s),
        max_backoff_s=number(MAX_BACKOFF, defaults.max_backoff_s),
        max_retries=number(MAX_RETRIES, defaults.max_retries, whole=True),
    )
    review.refuse()
    return found
