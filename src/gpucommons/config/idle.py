"""The settings of idle holders and of the channels for messages. Values only."""

from dataclasses import dataclass

from gpucommons.base.address import parse_remote_address
from gpucommons.config.option import check_mail_address, check_mail_pattern, check_url, option


@dataclass(frozen=True, slots=True)
class IdleSettings:
    """Messages to holders of idle GPUs. They are shown by gpucommons me, and sent by [mail] and [webhook] if set."""

    after_s: float = option(
        7200.0,
        "seconds for which a holder has not used its GPUs when it gets the first message, and length of the window in "
        "which that is judged; 0: no messages",
        minimum=0,
    )
    active_percent: float = option(
        1.0,
        "percent of an idle period, or of its last after_s, that may be used without ending the period",
        minimum=0,
        maximum=50,
    )
    remind_after_s: float = option(
        7200.0, "seconds of further idleness from the first message to a reminder; 0: none", minimum=0
    )
    act: str = option(
        "none",
        "what is done to a holder that stays idle. park: the GPU memory of its programs goes to host memory "
        "(scheduler.share_programs); end_lease: its lease is ended; none: nothing",
        choices=("none", "park", "end_lease"),
    )
    act_after_s: float = option(
        14_400.0, "seconds of further idleness from the first delivered message to the action of act", minimum=1
    )
    digest_day: str = option(
        "monday",
        "day of the weekly digest to mail.admin and [webhook]: hours held, active and wasted, and lost GPUs",
        choices=("off", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
    )
    digest_hour: int = option(8, "hour of the weekly digest, in local time, 0 to 23", minimum=0, maximum=23)


@dataclass(frozen=True, slots=True)
class IdleRuleSettings:
    """One line for each rule, such as services = { user = "svc-*", leave_alone = true }. The first that matches counts.

    A rule without leave_alone and email changes nothing.
    """

    user: str = option("*", "shell pattern of the user's name; for a pod, of NAMESPACE/POD")
    leave_alone: bool = option(False, "true: no message and no action")
    email: str = option(
        "", "email address of these users, in which {user} is the name; empty: mail.address", check=check_mail_pattern
    )


@dataclass(frozen=True, slots=True)
class MailSettings:
    """The mail server for messages of [idle]."""

    server: str = option("", "HOST:PORT of the SMTP server; empty: no email", check=parse_remote_address)
    tls: str = option(
        "starttls",
        "encryption of the connection: starttls (port 587), tls (port 465) or none (a relay on this machine)",
        choices=("starttls", "tls", "none"),
    )
    ca_file: str = option(
        "", "certificate of the authority that signed the server's certificate; empty: those of the system"
    )
    user: str = option("", "name for the login at the server; empty: no login")
    password_file: str = option("", "file whose first line is the password of mail.user, read for each message")
    sender: str = option("", "address from which messages are sent; needed with mail.server", check=check_mail_address)
    address: str = option(
        "",
        "address of a user, in which {user} is the name, such as {user}@example.org; empty: only users with a rule in "
        "[idle_rules] get email",
        check=check_mail_pattern,
    )
    admin: str = option("", "address that gets the weekly digest; empty: none", check=check_mail_address)


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """A webhook that accepts {"text": ...}, such as one of Slack or Mattermost. It gets the messages of [idle]."""

    url: str = option("", "URL of the webhook; empty: none, unless url_file is set", check=check_url)
    url_file: str = option("", "file whose first line is the URL, in place of url, read for each message; empty: none")
