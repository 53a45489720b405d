"""What ``to_slack`` and ``to_email`` send, to servers that listen."""

from __future__ import annotations

import smtplib
import urllib.error
from dataclasses import replace
from pathlib import Path
from typing import Literal

import dagster as dg
import pytest

from dagster_ckpt import JobFailed, to_email, to_slack
from dagster_ckpt.errors import InvalidConfiguration
from tests.servers.certificate import certificate
from tests.servers.messages import MailServer, Webhook

FAILED = JobFailed(
    "delays",
    "all restarts are used up: <no> space & no hope",
    "run-1",
    f"{1:032x}/chk-7",
    checkpoint_path="/data/my checkpoints",
)
OPS = "ops@example.com"


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate(tmp_path_factory.mktemp("pem"))


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch, pem: Path) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    monkeypatch.setenv("MAIL_PASSWORD", "opens")


def test_slack_gets_the_reason_and_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    with Webhook() as webhook:
        monkeypatch.setenv("SLACK_WEBHOOK", webhook.url)
        to_slack(dg.EnvVar("SLACK_WEBHOOK"))(FAILED)
        to_slack(webhook.url)(replace(FAILED, reason="x" * 10_000, checkpoint=None, state="UNREADABLE"))
    first, second = (message["text"] for message in webhook.heard)
    assert first.startswith("Job delays is FAILED, and nothing resumes it by itself.\n")
    assert "used up: &lt;no&gt; space &amp; no hope\n" in first
    assert f"Its newest checkpoint: {1:032x}/chk-7. Its last run: run-1." in first
    assert "`dagster-ckpt status delays --path '/data/my checkpoints'`" in first
    assert len(second) == 3000


def test_a_webhook_that_refuses_is_an_error_that_does_not_tell_its_address() -> None:
    with Webhook() as webhook:
        webhook.status = 404
        with pytest.raises(urllib.error.HTTPError) as refused:
            to_slack(webhook.url)(FAILED)
    assert "secret-part" not in str(refused.value)
    with pytest.raises(InvalidConfiguration) as no_address:
        to_slack("file:///etc/secret-part")(FAILED)
    assert "secret-part" not in str(no_address.value)


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_mail_is_sent_by_one_who_has_logged_in(pem: Path, security: Literal["starttls", "tls"]) -> None:
    with MailServer(pem, security) as server:
        password = dg.EnvVar("MAIL_PASSWORD")
        to = [OPS, "boss@example.com"]
        place = {"sender": "dagster@example.com", "host": "127.0.0.1"}
        to_email(to, **place, port=server.port, user="dagster", password=password, security=security)(FAILED)
        (mail,) = server.mails
        assert server.logins == 1
        server.refused = {"boss@example.com"}
        told = to_email(to, **place, port=server.port, user="dagster", password=password, security=security)
        with pytest.raises(OSError, match=r"refused boss@example\.com"):
            told(FAILED)
    assert (mail["Subject"], mail["From"]) == ("Job delays is FAILED", "dagster@example.com")
    assert mail["To"] == "ops@example.com, boss@example.com"
    text = mail.get_payload(decode=True)
    assert isinstance(text, bytes)
    assert b"used up: <no> space & no hope" in text
    assert b"dagster-ckpt status delays" in text


def test_a_server_whose_certificate_nobody_knows_gets_no_password(pem: Path) -> None:
    with MailServer(pem, "starttls") as server:
        tell = to_email([OPS], sender=OPS, host="127.0.0.1", port=server.port, user="dagster", password="opens")
        with pytest.raises(OSError, match="certificate"):
            tell(FAILED)
    assert not server.mails


@pytest.mark.usefixtures("trusted")
def test_a_wrong_password_is_an_error(pem: Path) -> None:
    with MailServer(pem, "starttls") as server:
        tell = to_email([OPS], sender=OPS, host="127.0.0.1", port=server.port, user="dagster", password="wrong")
        with pytest.raises(smtplib.SMTPAuthenticationError):
            tell(FAILED)


def test_without_a_user_nobody_logs_in(pem: Path) -> None:
    with MailServer(pem, "none") as server:
        to_email([OPS], sender=OPS, host="127.0.0.1", port=server.port, security="none")(FAILED)
    assert (len(server.mails), server.logins) == (1, 0)


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="list of recipients"):
        to_email(OPS, sender=OPS, host="mail")
    with pytest.raises(InvalidConfiguration, match="plain text"):
        to_email([OPS], sender=OPS, host="mail", user="dagster", password="opens", security="none")
    with pytest.raises(InvalidConfiguration, match="NOT_SET_ANYWHERE, which is not set"):
        to_slack(dg.EnvVar("NOT_SET_ANYWHERE"))(FAILED)
