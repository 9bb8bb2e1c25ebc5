"""The champion behind an OpenAI-compatible endpoint.

    serve run serve_apps.completions:build pair=arithmetic task=arithmetic     # settings by name, dotted or nested
    serve run serve_apps.completions:build verifier.checkpoint=/path/to/verifier decode.draft_length=4
    serve deploy serve_apps/completions.yaml                                   # `app`: settings from the environment

Run them in the checkout, or with the package installed. `python -m jobs.deploy` does the same with checks and waiting.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import ray
from ray import serve
from ray.serve.config import BackpressureConfig

from diversed.cluster.resources import serve_plan
from diversed.cluster.session import nodes
from diversed.errors import ConfigError
from diversed.settings import Settings, dotted, from_record, named_settings

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["app", "application", "build"]

# What of `decode` may be given otherwise than the verifier's run had it. The method is always DIVERSED, and requests
# are decoded one at a time.
SERVED = ("decode.draft_length", "decode.cap", "decode.temperature", "decode.top_k", "decode.top_p")
HEADROOM = 8  # ongoing requests beside those that decode or wait: model lists, health, refusals


@serve.deployment(
    name="completions",
    # Loading fails for reasons that a second attempt does not mend: say so at once.
    max_constructor_retry_count=1,
    graceful_shutdown_timeout_s=10,
    backpressure_config=BackpressureConfig(status_code=429, retry_after_s=1),
)
@serve.ingress()
class Completions:
    """One replica: the pair, the verifier and the engine. Only replicas load them, and import what they need."""

    def __init__(self, record: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
        from diversed.serving.champion import load_service

        self._service = load_service(from_record(record), changes)

    def __serve_build_asgi_app__(self) -> "FastAPI":
        from diversed.serving.http import create_app

        return create_app(self._service)


def application(settings: Settings, changes: Mapping[str, Any] | None = None) -> serve.Application:
    """The application of validated settings; `changes` are as `diversed.serving.champion.champion_of` takes them."""
    # GPUs are reserved where the cluster is known to have some; outside of a cluster none is known.
    plan = serve_plan(settings, nodes() if ray.is_initialized() else [])
    replica, *models = plan.bundles
    ongoing = settings.serve.max_waiting + 1 + HEADROOM
    placement: dict[str, Any] = {"placement_group_bundles": plan.placement} if models else {}
    deployment = cast("serve.Deployment", Completions).options(
        max_ongoing_requests=ongoing,
        max_queued_requests=ongoing,
        ray_actor_options={"num_cpus": replica.cpus, "num_gpus": replica.gpus},
        **placement,
    )
    return deployment.bind(settings.record(), dict(changes or {}))


def build(args: Mapping[str, Any]) -> serve.Application:
    """Serve's application builder; `args` are settings by name. ConfigError for a bad one. Loads nothing."""
    settings = named_settings(args)
    changes = {name: value for name, value in dotted(args).items() if name.startswith("decode.")}
    for name in changes:
        if name not in SERVED:
            raise ConfigError(
                f"{name}: an endpoint serves its verifier's; only {', '.join(SERVED)} can be given otherwise"
            )
    return application(settings, changes)


app = build({})
