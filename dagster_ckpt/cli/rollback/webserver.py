"""Dagster's webserver, asked over GraphQL: which code location has a job, to launch a run, and how the run is."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import requests

from dagster_ckpt.errors import CheckpointError, CheckpointNotFound, InvalidConfiguration

__all__ = ["RunState", "Webserver"]

#: Seconds for an answer; a code location may have to be loaded first.
_TIMEOUT = 60.0
#: Seconds for a launch that nobody has answered to show itself, and between two looks for it.
_SHOWS, _LOOK = 20.0, 1.0
_OVER = {"SUCCESS", "FAILURE", "CANCELED"}
_NOT_OVER = ["QUEUED", "NOT_STARTED", "MANAGED", "STARTING", "STARTED", "CANCELING"]
_JOBS = """
query { repositoriesOrError {
  __typename
  ... on RepositoryConnection { nodes { name location { name } jobs { name } } }
  ... on PythonError { message }
} }"""
_LAUNCH = """
mutation ($params: ExecutionParams!) { launchRun(executionParams: $params) {
  __typename
  ... on LaunchRunSuccess { run { runId } }
  ... on RunConfigValidationInvalid { errors { message } }
  ... on PipelineNotFoundError { message }
  ... on UnauthorizedError { message }
  ... on PythonError { message }
} }"""
_RUN = """
query ($runId: ID!) { runOrError(runId: $runId) {
  __typename
  ... on Run { status tags { key value } }
  ... on PythonError { message }
} }"""
_NEWEST = """
query ($filter: RunsFilter!) { runsOrError(filter: $filter, limit: 1) {
  __typename
  ... on Runs { results { runId status } }
  ... on PythonError { message }
} }"""


class RunState(NamedTuple):
    """How a run is.

    Attributes:
        status: as Dagster names it.
        tags: the run's tags.
    """

    status: str
    tags: Mapping[str, str]

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.status in _OVER


class Webserver:
    """A webserver of Dagster.

    Args:
        url: such as ``http://localhost:3000``.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def find(self, job: str) -> dict[str, str]:
        """The selector of the Dagster job called ``job``.

        Raises:
            CheckpointNotFound: no code location has the job, or several have.
            CheckpointError: the webserver could not be asked.
        """
        nodes = self._ask(_JOBS, {}, "repositoriesOrError", "RepositoryConnection")["nodes"]
        found = [node for node in nodes if job in {known["name"] for known in node["jobs"]}]
        if len(found) != 1:
            locations = ", ".join(node["location"]["name"] for node in (found or nodes)) or "none"
            raise CheckpointNotFound(
                f"{'Several code locations' if found else 'No code location'} of {self.url} "
                f"{'have' if found else 'has'} a job {job!r}: {locations}.",
                hint="In Dagster, launch the job of the code location that you mean."
                if found
                else "Name the checkpointed job as `dagster-ckpt status` does, and see under *Deployment* whether its "
                "code location is loaded.",
            )
        (node,) = found
        return {"jobName": job, "repositoryName": node["name"], "repositoryLocationName": node["location"]["name"]}

    def launch(self, selector: Mapping[str, str], run_config: Mapping[str, Any], tag: str) -> str:
        """Launch a run, and return its id. A reply that is lost says nothing, so the run is then looked for.

        Args:
            selector: of the Dagster job.
            run_config: of the run.
            tag: the key of a tag that only this launch gets.

        Raises:
            CheckpointError: Dagster has not launched the run, or nobody can tell whether it has.
        """
        value = uuid.uuid4().hex
        metadata = {"tags": [{"key": tag, "value": value}]}
        params = {"selector": dict(selector), "runConfigData": dict(run_config), "executionMetadata": metadata}
        try:
            reply = self._reply(_LAUNCH, {"params": params}, "launchRun")
        except InvalidConfiguration:
            raise
        except CheckpointError as error:
            return self._launched(tag, value, error)
        return str(self._accepted(reply, "LaunchRunSuccess")["run"]["runId"])

    def run(self, run_id: str) -> RunState:
        """How a run is.

        Raises:
            CheckpointError: the webserver could not be asked, or does not know the run.
        """
        found = self._ask(_RUN, {"runId": run_id}, "runOrError", "Run")
        return RunState(found["status"], {tag["key"]: tag["value"] for tag in found["tags"]})

    def active(self, tag: str, value: str) -> tuple[str, str] | None:
        """The newest run with a tag that is not over: its id and its status, ``None`` if there is no such run.

        Raises:
            CheckpointError: the webserver could not be asked.
        """
        return self._newest({"tags": [{"key": tag, "value": value}], "statuses": _NOT_OVER})

    def _newest(self, chosen: Mapping[str, Any]) -> tuple[str, str] | None:
        found = self._ask(_NEWEST, {"filter": chosen}, "runsOrError", "Runs")["results"]
        return (found[0]["runId"], found[0]["status"]) if found else None

    def _launched(self, tag: str, value: str, lost: CheckpointError) -> str:
        """The run of a launch without a reply, which Dagster may still be about to make."""
        until = time.monotonic() + _SHOWS
        while True:
            with suppress(CheckpointError):  # whatever has lost the reply may last
                if (found := self._newest({"tags": [{"key": tag, "value": value}]})) is not None:
                    return found[0]
            if time.monotonic() > until:
                raise CheckpointError(
                    f"Nobody can tell whether Dagster has launched the run: {lost.message}",
                    hint=f"Look on {self.url}/runs for a run with the tag {tag}={value}, and call again only if there "
                    "is none: every run goes back once more.",
                ) from lost
            time.sleep(_LOOK)

    def _ask(self, query: str, variables: Mapping[str, Any], field: str, kind: str) -> dict[str, Any]:
        return self._accepted(self._reply(query, variables, field), kind)

    def _accepted(self, reply: tuple[str, dict[str, Any]], kind: str) -> dict[str, Any]:
        given, found = reply
        if given != kind:
            why = found.get("message") or "; ".join(error["message"] for error in found.get("errors", ()))
            raise CheckpointError(f"Dagster refuses: {given}: {why}", hint=f"See {self.url}.")
        return found

    def _reply(self, query: str, variables: Mapping[str, Any], field: str) -> tuple[str, dict[str, Any]]:
        """What Dagster has replied, also if it refuses: the kind of the reply, and the reply.

        Raises:
            InvalidConfiguration: the text is no URL.
            CheckpointError: there is no reply of Dagster, which says nothing about what Dagster has done.
        """
        body: Any = {"query": query, "variables": dict(variables)}
        try:
            # A redirect would lead to the login of a proxy.
            reply = requests.post(f"{self.url}/graphql", json=body, timeout=_TIMEOUT, allow_redirects=False)
            answer: Any = reply.json()
            found: dict[str, Any] = answer["data"][field]
            given: str = found["__typename"]
        except (requests.exceptions.InvalidURL, requests.exceptions.MissingSchema, requests.exceptions.InvalidSchema):
            raise InvalidConfiguration(
                f"{self.url} is no URL of a webserver.", hint="Write it as http://localhost:3000, for example."
            ) from None
        except requests.exceptions.RequestException as error:
            if isinstance(error, requests.exceptions.JSONDecodeError):
                raise self._strange(f"status {reply.status_code}") from None
            raise CheckpointError(
                f"The webserver of Dagster at {self.url} does not answer: {type(error).__name__}.",
                hint="Start it, or name another one with --dagster-url.",
            ) from error
        except (KeyError, TypeError):
            raise self._strange(str(answer)[:300]) from None
        return given, found

    def _strange(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self.url} does not answer as a webserver of Dagster does: {what}.",
            hint="Name the URL of Dagster's UI, without a page. A server that asks for a login cannot be used.",
        )
