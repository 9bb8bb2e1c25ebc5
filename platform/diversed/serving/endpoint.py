"""Bringing an application up on Ray Serve, and asking it something."""

import json
import logging
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from ray import serve
from ray.serve.config import HTTPOptions
from ray.serve.context import _get_global_client
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview

from diversed.cluster import free_port
from diversed.errors import ClusterError, DiversedError
from diversed.settings import ServeSettings

__all__ = ["Endpoint", "deploy", "post"]

logger = logging.getLogger(__name__)

POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an application answers."""

    url: str  # without a trailing slash; an OpenAI client's base_url is `<url>/v1`

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"


def deploy(application: serve.Application, settings: ServeSettings, timeout_s: float = 900) -> Endpoint:
    """Run `application` under `settings.app_name` and wait until it answers; an application of that name is replaced.

    Ray must be connected. Serve that runs already keeps its port; else a port that is taken is replaced by a free one,
    which the log names. ClusterError, with the reason in one line, if the application does not come up.
    """
    host, port = _listen(settings)
    # Not serve.run: it waits without end for an application that the cluster has no room for.
    target = serve.RunTarget(target=application, name=settings.app_name, route_prefix=settings.route_prefix)
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
    _await_running(settings.app_name, timeout_s)
    reachable = "127.0.0.1" if host in ("", "0.0.0.0", "::") else host  # noqa: S104 - listening there was asked for
    shown = f"[{reachable}]" if ":" in reachable else reachable
    return Endpoint(f"http://{shown}:{port}{settings.route_prefix.rstrip('/')}")


def post(endpoint: Endpoint, path: str, body: dict[str, Any], timeout_s: float = 120) -> dict[str, Any]:
    """One JSON request, e.g. to `/v1/completions`; DiversedError with the answer's message if it fails."""
    request = urllib.request.Request(  # noqa: S310 - the URL is our own endpoint's
        endpoint.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    # No proxy of the environment stands before an endpoint of the cluster.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            value: dict[str, Any] = json.load(answer)
            return value
    except urllib.error.HTTPError as error:
        content = error.read().decode(errors="replace")
        raise DiversedError(f"{endpoint.url}{path} answered {error.code}: {content[:500]}") from error
    except OSError as error:
        raise ClusterError(f"{endpoint.url}{path} does not answer: {error}") from error


def _listen(settings: ServeSettings) -> tuple[str, int]:
    """Start Serve's HTTP proxy if there is none; where it listens."""
    client = _get_global_client(raise_if_no_controller_running=False)  # type: ignore[no-untyped-call, unused-ignore]
    if client is not None:
        host, port = str(client.http_config.host), int(client.http_config.port)
        if port != settings.port and settings.port != 0:
            logger.warning(
                "Serve on this cluster listens on port %d already; serve.port = %d is not used", port, settings.port
            )
        return host, port
    port = free_port(settings.host, settings.port)
    options = HTTPOptions(host=settings.host, port=port)
    serve.start(proxy_location="HeadOnly", http_options=options)
    return settings.host, port


def _await_running(name: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    told = ""
    while True:
        application = serve.status().applications.get(name)
        if application is not None:
            if application.status == ApplicationStatus.RUNNING:
                return
            if application.status in (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY):
                raise ClusterError(f"the endpoint did not start: {_reason(application)}")
            waits = " ".join(" ".join(each.message for each in application.deployments.values()).split())
            if waits != told:  # after half a minute Serve says what a replica waits for
                logger.info("%s", waits)
                told = waits
        if time.monotonic() > deadline:
            reason = _reason(application) if application is not None else "Serve does not know it"
            raise ClusterError(f"the endpoint is not up after {timeout_s:.0f} s: {reason}; see `ray status`")
        time.sleep(POLL_S)


def _reason(application: ApplicationStatusOverview) -> str:
    """What went wrong, in one line: a traceback's last one, which names the error."""
    messages = [deployment.message for deployment in application.deployments.values()] + [application.message]
    lines = [line.strip() for message in messages for line in message.strip().splitlines() if line.strip()]
    errors = [line for line in lines if "Error: " in line]
    return errors[-1] if errors else lines[-1] if lines else application.status.value
