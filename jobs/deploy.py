"""Serve the champion behind an OpenAI-compatible endpoint, and ask it one question.

    ray job submit --working-dir . --runtime-env jobs/runtime_env.yaml -- python -m jobs.deploy --task arithmetic
    python -m jobs.deploy                                           # on a Ray of its own, until Ctrl-C
    python -m jobs.deploy --verifier.checkpoint /path/to/verifier   # a verifier that is not registered

What could keep a replica from loading is checked before anything is deployed. The exact version that was checked is
deployed: a later promotion shows when this job is run again.
"""

import logging
import signal
import sys
from dataclasses import dataclass
from typing import Any

from diversed.errors import DiversedError
from diversed.settings import Settings
from diversed.tasks import Split, get_task
from jobs._main import job

__all__ = ["Deployed", "deploy_champion", "main"]


@dataclass(frozen=True, slots=True)
class Deployed:
    """An endpoint that has answered."""

    url: str  # an OpenAI client's base_url
    model: str
    version: str
    prompt: str
    reply: str
    metrics: dict[str, Any]

    def describe(self) -> str:
        """The lines that tell a user what is served and how it answers."""
        speculation = self.metrics["speculative_decoding"]
        return (
            f"endpoint  {self.url}\n"
            f"model     {self.model}, verifier {self.version}; lossy by design\n"
            f"prompt    {self.prompt!r}\n"
            f"reply     {self.reply!r}\n"
            f"          {speculation['num_accepted_draft_tokens']} of {speculation['num_draft_tokens']} drafted tokens "
            f"accepted in {speculation['num_spec_steps']} steps"
        )


def deploy_champion(settings: Settings) -> Deployed:
    """Check, deploy and ask; Ray must be connected. The application stays up as long as the cluster.

    TrackingError, CheckpointError, PairError, ConfigError or ClusterError, each one line, if that cannot be.
    """
    from diversed.cluster import nodes, require, serve_plan
    from diversed.serving.champion import champion_of
    from diversed.serving.endpoint import deploy, post
    from serve_apps.completions import application

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    champion = champion_of(settings)
    pinned = settings.updated({"verifier.checkpoint": champion.uri})
    plan = serve_plan(pinned, nodes())
    require(plan, nodes())
    print(
        f"deploying {champion.version}: draft length {champion.decode.draft_length}, cap {champion.decode.cap}, "
        f"temperature {champion.decode.temperature}; {plan}",
        flush=True,
    )
    endpoint = deploy(application(pinned), pinned.serve)
    example = get_task(settings.task.name).examples(settings.task, Split.TEST, settings.seed)[0]
    body = {"model": settings.registered_model, "prompt": example.prompt, "seed": settings.seed}
    answer = post(endpoint, "/v1/completions", body)
    if answer["system_fingerprint"] != champion.version:
        raise DiversedError(f"{endpoint.url} is served by {answer['system_fingerprint']}, not by {champion.version}")
    return Deployed(
        url=endpoint.base_url,
        model=settings.registered_model,
        version=champion.version,
        prompt=example.prompt,
        reply=answer["choices"][0]["text"],
        metrics=answer["metrics"],
    )


def stage(settings: Settings) -> None:
    """Deploy on the connected cluster; on a Ray of its own, serve until a signal comes."""
    from diversed.cluster import connect
    from diversed.serving.champion import champion_of

    champion_of(settings)  # no Ray is started for what cannot be served
    with connect(dashboard=True) as session:
        print(deploy_champion(settings).describe(), flush=True)
        if session.local:
            print("serving until Ctrl-C: this Ray ends with the job", flush=True)
            signal.pause()


main = job("Serve the champion behind an OpenAI-compatible endpoint, and ask it one question.")(stage)

if __name__ == "__main__":
    sys.exit(main())
