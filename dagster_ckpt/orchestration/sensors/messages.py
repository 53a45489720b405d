"""What :func:`~dagster_ckpt.on_job_failed` can send without code of the user's: a message in Slack, or a mail."""

from __future__ import annotations

import html
import json
import smtplib
import ssl
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from email.message import EmailMessage
from typing import Literal

import dagster as dg

from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration.sensors.failed_sensor import JobFailed
from dagster_ckpt.orchestration.storages import from_environment
from dagster_ckpt.shown_text import path_option

__all__ = ["to_email", "to_slack"]

#: Seconds that a server may take for an answer.
_PATIENCE = 10.0
#: Most characters of a message: Slack cuts longer ones.
_LONGEST = 3000


def to_slack(webhook: str | dg.EnvVar) -> Callable[[JobFailed], None]:
    """Tell of a failed job by an incoming webhook: of Slack, Mattermost, or whatever takes ``{"text": ...}``.

    .. code-block:: python

        on_job_failed([delays], to_slack(dg.EnvVar("SLACK_WEBHOOK")))

    Args:
        webhook: the address. The address is a secret: whoever knows it can write. So name a variable that holds it.

    Raises:
        InvalidConfiguration: of the returned function: the variable is not set, or holds no address.
        OSError: of the returned function: the message was not taken.
    """

    def tell(failed: JobFailed) -> None:
        address = _value(webhook)
        if urllib.parse.urlsplit(address).scheme not in {"http", "https"}:
            raise InvalidConfiguration(
                "The webhook is no address that begins with https://.", hint="Copy the address from Slack's settings."
            )
        text = html.escape(_text(failed), quote=False)
        body = json.dumps({"text": text[:_LONGEST]}).encode()
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})  # noqa: S310 - looked at
        urllib.request.urlopen(request, timeout=_PATIENCE).close()  # noqa: S310 - looked at above

    return tell


def to_email(
    recipients: Sequence[str],
    *,
    sender: str,
    host: str,
    port: int = 587,
    user: str | dg.EnvVar | None = None,
    password: str | dg.EnvVar | None = None,
    security: Literal["starttls", "tls", "none"] = "starttls",
) -> Callable[[JobFailed], None]:
    """Tell of a failed job by mail.

    Args:
        recipients: their addresses.
        sender: the address that the mail is from.
        host: the mail server.
        port: of the mail server; 587 is usual for ``starttls``, 465 for ``tls``.
        user: to log in as; without it nobody logs in.
        password: of ``user``.
        security: how the connection is encrypted. A password is not sent with ``none``.

    Raises:
        InvalidConfiguration: there is no recipient, or the password would be sent without encryption; of the returned
            function: a variable is not set.
        OSError: of the returned function: the mail server did not take the mail for every recipient.
    """
    if isinstance(recipients, str) or not recipients:
        raise InvalidConfiguration(
            "A mail needs a list of recipients.", hint='Give to_email(["ops@example.com"], ...).'
        )
    if password is not None and security == "none":
        raise InvalidConfiguration(
            "The password of the mail server would be sent as plain text.", hint="Give security='starttls' or 'tls'."
        )

    def tell(failed: JobFailed) -> None:
        mail = EmailMessage()
        mail["Subject"] = f"Job {failed.job_name} is {failed.state}"
        mail["From"], mail["To"] = sender, ", ".join(recipients)
        mail.set_content(_text(failed))
        context = ssl.create_default_context()
        with (
            smtplib.SMTP_SSL(host, port, timeout=_PATIENCE, context=context)
            if security == "tls"
            else smtplib.SMTP(host, port, timeout=_PATIENCE)
        ) as server:
            if security == "starttls":
                server.starttls(context=context)
            if user is not None:
                server.login(_value(user), _value(password or ""))
            if refused := server.send_message(mail):
                raise OSError(f"The mail server refused {', '.join(sorted(refused))}")

    return tell


def _text(failed: JobFailed) -> str:
    path = f" {path_option(failed.checkpoint_path)}" if failed.checkpoint_path else ""
    return "\n".join(
        (
            f"Job {failed.job_name} is {failed.state}, and nothing resumes it by itself.",
            failed.reason,
            f"Its newest checkpoint: {failed.checkpoint or 'none'}. Its last run: {failed.run_id or 'unknown'}.",
            f"Look with `dagster-ckpt status {failed.job_name}{path}`. When the cause is mended, materialize the "
            "asset: the job goes on from its newest checkpoint.",
        )
    )


def _value(given: str | dg.EnvVar) -> str:
    return from_environment(given.env_var_name, "An address or a password") if isinstance(given, dg.EnvVar) else given
